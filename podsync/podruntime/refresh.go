// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/podsync/podenv"
)

// volumeRefresh is the time between two reads of the ConfigMaps, Secrets and pod fields in volumes.
// Tokens and certificates are kept until they must be renewed.
const volumeRefresh = time.Minute

// scheduleRefresh sets when the volumes with data from the API are read next. The
// age of the credentials of an adopted pod is not known; they are as old as the pod.
func (p *pod) scheduleRefresh(now time.Time) {
	for i := range p.spec.Spec.Volumes {
		v := &p.spec.Spec.Volumes[i]
		if !podenv.IsData(v) {
			continue
		}
		wait := volumeRefresh
		if hasCredentials(v) {
			wait = min(wait, max(shortestLife(v)*8/10-max(now.Sub(p.accepted), 0), 0))
		}
		p.refreshDue[v.Name] = now.Add(wait)
	}
}

// refresh reads the volumes that are due, one after the other, and returns when the
// next one is.
func (p *pod) refresh(now time.Time) (again time.Time) {
	if p.refreshing || p.deadline != nil {
		return time.Time{}
	}
	name := ""
	for _, n := range slices.Sorted(maps.Keys(p.refreshDue)) {
		if due := p.refreshDue[n]; name == "" || due.Before(again) {
			name, again = n, due
		}
	}
	if name == "" || again.After(now) {
		return again
	}
	at := slices.IndexFunc(p.spec.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == name })
	v, spec, ctx := &p.spec.Spec.Volumes[at], p.spec, p.starting
	if hasFields(v) {
		spec = p.labelled()
	}
	p.refreshing = true
	p.node.wg.Go(func() {
		var files map[string]podenv.File
		err := p.node.panics.contain(ctx, "Config.Environment", func() (err error) {
			files, err = p.node.cfg.Environment.Refresh(spec, p.memory).Volume(ctx, name)
			return err
		})
		if err == nil {
			err = p.replaceData(spec, v, files)
		}
		renew := nextRenewal(files)
		p.do(func() {
			p.refreshing = false
			p.refreshDue[name] = nextRead(renew, time.Now())
			if err != nil && ctx.Err() == nil {
				p.unfresh[name] = true
				p.reports.fail(p.ctx, refreshing, err, "A volume is not refreshed", "volume", name)
				p.event(corev1.EventTypeWarning, "FailedMount", "Mounting", "MountVolume.SetUp failed for volume %q: %v", name, err)
			} else if delete(p.unfresh, name); len(p.unfresh) == 0 {
				p.reports.ok(p.ctx, refreshing)
			}
		})
	})
	return time.Time{}
}

// fillAbsent fills the volumes that the restart of the machine has emptied.
func (p *pod) fillAbsent(ctx context.Context, resolved *podenv.Pod, spec *corev1.Pod) error {
	p.prepare.Lock() // containers of a pod share its volumes
	defer p.prepare.Unlock()
	return fillAbsent(ctx, resolved, spec, p.dir)
}

// replaceData replaces the content of a volume of spec. After a restart of the machine it may come
// before the first start, which would mount the memory for Secrets.
func (p *pod) replaceData(spec *corev1.Pod, v *corev1.Volume, files map[string]podenv.File) error {
	p.prepare.Lock()
	defer p.prepare.Unlock()
	p.keepInputs()
	if err := mountSecrets(p.ctx, spec, p.dir); err != nil {
		return err
	}
	return writeData(dataPath(p.dir, v), files, fsGroup(spec))
}

// keepInputs writes what the containers have read, if it has changed. p.prepare must be held.
// If it can't be written, the containers run anyway: it is for an API server that is away.
func (p *pod) keepInputs() {
	version := p.memory.Version()
	if version == p.keptInputs {
		return
	}
	err := p.node.panics.contain(p.ctx, "Config.Sealer", func() error { return keepInputs(p.dir, p.memory, p.node.cfg.Sealer) })
	if err != nil {
		p.reports.fail(p.ctx, remembering, err, "What the containers of a pod have read is not on disk")
		return
	}
	p.reports.ok(p.ctx, remembering)
	p.keptInputs = version
}

// recallInputs returns what the containers of a pod have read in an earlier process. What can't
// be read is read from the API again.
func (n *node) recallInputs(ctx context.Context, dir string) *podenv.Memory {
	data, err := os.ReadFile(inputsFile(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return &podenv.Memory{}
	}
	memory := &podenv.Memory{}
	if err == nil {
		err = n.panics.contain(ctx, "Config.Sealer", func() (err error) {
			memory, err = n.cfg.Environment.Remember(data, n.cfg.Sealer)
			return err
		})
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "A part of what the containers of a pod had read can't be recalled")
	}
	return memory
}
