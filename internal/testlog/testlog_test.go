// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package testlog

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"k8s.io/klog/v2"
)

func TestKeepsTheLastLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(t)
		for i := range kept + 7 {
			l.Notef("step %d", i)
		}
		klog.FromContext(l.Context()).V(verbosity).Info("Wrote it", "thing", 3)
		klog.FromContext(l.Context()).V(verbosity + 1).Info("Too much")
		if len(l.lines) != kept || l.lost != 8 {
			t.Fatalf("%d lines and %d lost", len(l.lines), l.lost)
		}
		if want := fmt.Sprintf("00:00:00.000 step %d", kept+6); l.lines[kept-2] != want {
			t.Errorf("%q, want %q", l.lines[kept-2], want)
		}
		if last := l.lines[kept-1]; !strings.Contains(last, "00:00:00") || !strings.HasSuffix(last, `"Wrote it" thing=3`) {
			t.Errorf("the last line is %q", last)
		}
	})
}
