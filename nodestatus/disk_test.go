// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"errors"
	"io/fs"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/nodestatus/internal/status"
)

func TestDiskPressure(t *testing.T) {
	for name, test := range map[string]struct {
		space
		minFree int
		err     error
		want    corev1.ConditionStatus // empty: err, or that of minFree
	}{
		"half is free":        {space: space{1000, 500, 1000, 500}, minFree: 10, want: corev1.ConditionFalse},
		"a tenth is free":     {space: space{1000, 100, 1000, 50}, minFree: 10, want: corev1.ConditionFalse},
		"few bytes are free":  {space: space{1000, 99, 1000, 500}, minFree: 10, want: corev1.ConditionTrue},
		"few inodes are free": {space: space{1000, 500, 1000, 49}, minFree: 10, want: corev1.ConditionTrue},
		"no inodes":           {space: space{1000, 500, 0, 0}, minFree: 10, want: corev1.ConditionFalse},
		"a large disk":        {space: space{1000, 10, 1000, 5}, minFree: 1, want: corev1.ConditionFalse},
		"a full large disk":   {space: space{1000, 9, 1000, 5}, minFree: 1, want: corev1.ConditionTrue},
		"nothing has to be":   {space: space{1000, 0, 1000, 0}, minFree: 0, want: corev1.ConditionFalse},
		"another system":      {minFree: 10, err: errors.ErrUnsupported, want: corev1.ConditionUnknown},
		"no such path":        {minFree: 10, err: fs.ErrNotExist},
		"more than all":       {minFree: 101},
		"less than nothing":   {minFree: -1},
	} {
		node := &corev1.Node{}
		err := diskPressure("/pods", test.minFree, func(string) (space, error) { return test.space, test.err })(t.Context(), node)
		got := status.FindCondition(node.Status.Conditions, corev1.NodeDiskPressure)
		switch {
		case test.want == "":
			if err == nil || got != nil || test.err != nil && !errors.Is(err, test.err) || test.err == nil && !strings.Contains(err.Error(), "minFree") {
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
		setter := diskPressure("/pods", 10, func(string) (space, error) { return free, nil })
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
