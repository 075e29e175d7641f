// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/apierr"
	"github.com/kubewright/kubewright/internal/report"
)

// missingTaints returns the taints of keep that have lacks.
func missingTaints(keep, have []corev1.Taint) []corev1.Taint {
	var missing []corev1.Taint
	for _, taint := range keep {
		if !slices.ContainsFunc(have, func(t corev1.Taint) bool { return t.MatchTaint(&taint) && t.Value == taint.Value }) {
			missing = append(missing, taint)
		}
	}
	return missing
}

// withTaints returns taints with more, each in the place of one with its key and
// effect.
func withTaints(taints, more []corev1.Taint) []corev1.Taint {
	kept := slices.DeleteFunc(slices.Clone(taints), func(t corev1.Taint) bool {
		return slices.ContainsFunc(more, func(m corev1.Taint) bool { return m.MatchTaint(&t) })
	})
	return append(kept, more...)
}

// lacksTaints reports whether the Node lacks taints of Config.KeepTaints that may be
// added now. st.mu must be held.
func (r *work) lacksTaints() bool {
	st := r.state
	if len(r.cfg.KeepTaints) == 0 || !st.taintsDue || st.phase != PhaseRegistered {
		return false
	}
	if len(missingTaints(r.cfg.KeepTaints, st.view.node().Spec.Taints)) == 0 {
		st.taintsDue = false
		return false
	}
	return st.extra == nil || r.now() >= st.extra.nextTaints
}

// keepTaints adds the taints that the Node lacks, at most once a SyncInterval. A
// refusal is reported once and does not hold up the status.
func (r *work) keepTaints(ctx context.Context) {
	st := r.state
	st.mu.Lock()
	shown, uid := st.view.node(), st.uid
	extra := st.markExtra()
	extra.nextTaints = r.now() + r.cfg.SyncInterval
	st.mu.Unlock()
	missing := missingTaints(r.cfg.KeepTaints, shown.Spec.Taints)
	data, err := json.Marshal(map[string]any{
		// The list is replaced as a whole, so it must be the present one.
		"metadata": map[string]any{"uid": uid, "resourceVersion": shown.ResourceVersion},
		"spec":     map[string]any{"taints": withTaints(shown.Spec.Taints, missing)},
	})
	if err != nil {
		klog.FromContext(ctx).Error(err, "Failed to encode the taints")
		return
	}
	answer, latency, err := r.patchTaints(ctx, r.name, data)
	if err == nil {
		klog.FromContext(ctx).V(2).Info("Added taints that the Node lacked", "taints", missing)
		st.mu.Lock()
		defer st.mu.Unlock()
		st.see(answer)
		extra.taintsRefused = false
		return
	}
	if ctx.Err() != nil {
		return
	}
	if hook := r.cfg.Hooks.Failed; hook != nil {
		hook(Failed{NodeName: r.name, Verb: "patch", Class: apierr.Classify(err).String(), Err: err, Latency: latency})
	}
	st.mu.Lock()
	reported := true
	switch judge(err, r.name) {
	case gone, other:
		st.look = true // a read decides
	case refused:
		reported, extra.taintsRefused = extra.taintsRefused, true
		extra.nextTaints = r.now() + r.cfg.ReportInterval
	}
	st.mu.Unlock()
	if !reported {
		report.Tell(ctx, r.cfg.ErrorHandler, fmt.Errorf("nodestatus: taint node %q: %w", r.name, err), "Failed to add taints that the Node lacks")
	}
}

// patchTaints patches the Node itself, and not its status.
func (c *Controller) patchTaints(ctx context.Context, name string, data []byte) (*corev1.Node, time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.CallTimeout)
	defer cancel()
	begin := time.Now()
	answer, err := c.cfg.Client.Nodes().Patch(ctx, name, types.MergePatchType, data, metav1.PatchOptions{FieldManager: fieldManager})
	answer, err = apierr.Answer(answer, err, name)
	return answer, time.Since(begin), err
}
