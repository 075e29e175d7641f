// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/nodestatus/internal/status"
)

const (
	// minFreeBytes and minFreeInodes are the parts of a file system that must be free, one
	// in so many: the kubelet's nodefs.available<10% and nodefs.inodesFree<5%.
	minFreeBytes, minFreeInodes = 10, 20
	// pressureLasts is the time for which the pressure lasts after enough is free again:
	// the kubelet's evictionPressureTransitionPeriod. The scheduler would otherwise fill a
	// disk again as soon as a pod is gone.
	pressureLasts = 5 * time.Minute
)

// The reasons of the condition that [DiskPressure] sets.
const (
	reasonDiskPressure   = "KubeletHasDiskPressure"   // as the kubelet's
	reasonNoDiskPressure = "KubeletHasNoDiskPressure" // likewise
	reasonNotMeasured    = "NotMeasured"
)

// DiskPressure returns a Setter for the condition DiskPressure of a node whose pods have
// their files below path. The condition is True while less than a tenth of the bytes or a
// twentieth of the inodes of that file system is free, and for five minutes after that, as
// with the kubelet. Then the scheduler places no pods on the node. No pod is evicted: a
// program can do that with the Evict of podsync. The Setter fails while path does not exist.
// The condition is Unknown on systems other than Linux.
func DiskPressure(path string) Setter { return diskPressure(path, freeSpace) }

// A space is what a file system has, and what of it is free.
type space struct{ bytes, freeBytes, inodes, freeInodes uint64 }

// short reports whether too little is free. Some file systems, such as btrfs, do not count
// inodes.
func (s space) short() bool {
	return s.freeBytes < s.bytes/minFreeBytes || s.inodes > 0 && s.freeInodes < s.inodes/minFreeInodes
}

func diskPressure(path string, measure func(path string) (space, error)) Setter {
	var mu sync.Mutex
	var until time.Time // the pressure lasts
	return func(_ context.Context, node *corev1.Node) error {
		free, err := measure(path)
		condition := corev1.NodeCondition{Type: corev1.NodeDiskPressure, Status: corev1.ConditionFalse, Reason: reasonNoDiskPressure,
			Message: fmt.Sprintf("the file system of %s has enough free space", path)}
		switch {
		case errors.Is(err, errors.ErrUnsupported):
			condition.Status, condition.Reason, condition.Message = corev1.ConditionUnknown, reasonNotMeasured, "free space is measured on Linux only"
		case err != nil:
			return fmt.Errorf("measure the free space of %s: %w", path, err)
		}
		mu.Lock()
		defer mu.Unlock()
		if err == nil && free.short() {
			until = time.Now().Add(pressureLasts)
		}
		if time.Now().Before(until) {
			condition.Status, condition.Reason = corev1.ConditionTrue, reasonDiskPressure
			condition.Message = fmt.Sprintf("the file system of %s has, or had less than %v ago, less than 10%% of its bytes or 5%% of its inodes free", path, pressureLasts)
		}
		status.SetCondition(node, condition)
		return nil
	}
}
