// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/events"

	"github.com/kubewright/kubewright/internal/rmtree/rmtreetest"
	"github.com/kubewright/kubewright/podsync/podruntime"
)

// A file that nobody can delete costs an event, and neither the release of its pod nor the next start.
func TestAPodWhoseFilesStayIsReleasedWithAnEvent(t *testing.T) {
	probe := filepath.Join(t.TempDir(), "probe")
	if err := os.WriteFile(probe, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	rmtreetest.Immutable(t, probe)() // or the test is skipped
	recorder := events.NewFakeRecorder(100)
	inWorldWith(t, func(w *world) {
		w.change = func(cfg *podruntime.Config) { cfg.EventRecorder = recorder }
	}, func(w *world) {
		pod := withVolume()
		ref := w.start(pod)
		time.Sleep(time.Second)
		stuck := filepath.Join(w.root, "pods", string(ref.UID), "volumes", "v", "stuck")
		if err := os.WriteFile(stuck, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		undo := rmtreetest.Immutable(t, stuck)
		w.stop(ref, time.Second)
		time.Sleep(10 * time.Second)
		if err := w.p.Release(w.Context(), ref); err != nil {
			t.Errorf("the pod can't be released: %v", err)
		}
		seen := false
		for len(recorder.Events) > 0 {
			text := <-recorder.Events
			seen = seen || strings.Contains(text, "FailedCleanup") && strings.Contains(text, "stuck")
		}
		if !seen {
			t.Error("there is no event FailedCleanup that names the file")
		}
		w.kill()
		w.boot()
		other := withVolume()
		other.Name, other.UID = "other", "uid-2"
		ref = w.start(other)
		time.Sleep(time.Second)
		if st := w.state(ref).Status.ContainerStatuses[0].State; st.Running == nil {
			t.Errorf("the next process runs its pod not: %+v", st)
		}
		if pods, err := w.p.List(w.Context()); err != nil || len(pods) != 1 {
			t.Errorf("it has %v, %v, want one pod", pods, err)
		}
		undo()
	})
}
