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

// pressureLasts is the time for which the pressure lasts after enough is free again: the
// kubelet's evictionPressureTransitionPeriod. The scheduler would otherwise fill a disk
// again as soon as a pod is gone.
const pressureLasts = 5 * time.Minute

// The reasons of the condition that [DiskPressure] sets.
const (
	reasonDiskPressure   = "KubeletHasDiskPressure"   // as the kubelet's
	reasonNoDiskPressure = "KubeletHasNoDiskPressure" // likewise
	reasonNotMeasured    = "NotMeasured"
)

// DiskPressure returns a Setter for the condition DiskPressure of a node whose pods have
// their files below path. The condition is True while less than minFree percent of the bytes
// of that file system is free, or less than half as many percent of its inodes, and for five
// minutes after that. The kubelet's minFree is 10; a smaller one suits a large disk, and 0
// never reports pressure. While the condition is True the scheduler places no pods on the
// node. No pod is evicted: a program can do that with the Evict of podsync. The Setter fails
// while path does not exist, or if minFree is not between 0 and 100. The condition is Unknown
// on systems other than Linux.
func DiskPressure(path string, minFree int) Setter { return diskPressure(path, minFree, freeSpace) }

// A space is what a file system has, and what of it is free.
type space struct{ bytes, freeBytes, inodes, freeInodes uint64 }

// short reports whether less than minFree percent is free. Some file systems, such as btrfs,
// do not count inodes: they have none, and none is missing.
func (s space) short(minFree int) bool {
	part := float64(minFree) / 100
	return float64(s.freeBytes) < part*float64(s.bytes) || float64(s.freeInodes) < part/2*float64(s.inodes)
}

func diskPressure(path string, minFree int, measure func(path string) (space, error)) Setter {
	var mu sync.Mutex
	var until time.Time // the pressure lasts
	return func(_ context.Context, node *corev1.Node) error {
		if minFree < 0 || minFree > 100 {
			return fmt.Errorf("nodestatus: DiskPressure: minFree: %d is not a percentage from 0 to 100", minFree)
		}
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
		if err == nil && free.short(minFree) {
			until = time.Now().Add(pressureLasts)
		}
		if time.Now().Before(until) {
			condition.Status, condition.Reason = corev1.ConditionTrue, reasonDiskPressure
			condition.Message = fmt.Sprintf("the file system of %s has, or had less than %v ago, less than %d%% of its bytes or %g%% of its inodes free", path, pressureLasts, minFree, float64(minFree)/2)
		}
		status.SetCondition(node, condition)
		return nil
	}
}
