// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"errors"
	"io/fs"
	"path/filepath"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/nodestatus/internal/status"
)

func TestDiskPressure(t *testing.T) {
	for name, test := range map[string]struct {
		space
		err  error
		want corev1.ConditionStatus // empty: an error
	}{
		"half is free":        {space: space{1000, 500, 1000, 500}, want: corev1.ConditionFalse},
		"a tenth is free":     {space: space{1000, 100, 1000, 50}, want: corev1.ConditionFalse},
		"few bytes are free":  {space: space{1000, 99, 1000, 500}, want: corev1.ConditionTrue},
		"few inodes are free": {space: space{1000, 500, 1000, 49}, want: corev1.ConditionTrue},
		"no inodes":           {space: space{1000, 500, 0, 0}, want: corev1.ConditionFalse},
		"another system":      {err: errors.ErrUnsupported, want: corev1.ConditionUnknown},
		"no such path":        {err: fs.ErrNotExist},
	} {
		node := &corev1.Node{}
		err := diskPressure("/pods", func(string) (space, error) { return test.space, test.err })(t.Context(), node)
		got := status.FindCondition(node.Status.Conditions, corev1.NodeDiskPressure)
		switch {
		case test.want == "":
			if !errors.Is(err, test.err) || got != nil {
				t.Errorf("%s: %v, %v", name, err, got)
			}
		case err != nil || got == nil || got.Status != test.want:
			t.Errorf("%s: %v, %v, want %s", name, err, got, test.want)
		}
	}
}

// The pressure lasts for a while after enough is free again.
func TestDiskPressureLasts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		free := space{bytes: 1000, freeBytes: 10}
		setter := diskPressure("/pods", func(string) (space, error) { return free, nil })
		pressure := func() corev1.ConditionStatus {
			node := &corev1.Node{}
			if err := setter(t.Context(), node); err != nil {
				t.Fatal(err)
			}
			return node.Status.Conditions[0].Status
		}
		if got := pressure(); got != corev1.ConditionTrue {
			t.Errorf("on a full disk %s", got)
		}
		free.freeBytes = 900
		time.Sleep(5*time.Minute - time.Second)
		if got := pressure(); got != corev1.ConditionTrue {
			t.Errorf("a moment before five minutes are over %s", got)
		}
		time.Sleep(time.Second)
		if got := pressure(); got != corev1.ConditionFalse {
			t.Errorf("after five minutes %s", got)
		}
	})
}

func TestFreeSpaceIsThatOfThePath(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("free space is measured on Linux only")
	}
	s, err := freeSpace(t.TempDir())
	if err != nil || s.bytes == 0 || s.freeBytes > s.bytes || s.freeInodes > s.inodes {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := freeSpace(filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
}
