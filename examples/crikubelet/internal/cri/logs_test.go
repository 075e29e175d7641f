// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubewright/kubewright/examples/crikubelet/internal/criserver"
	"github.com/kubewright/kubewright/podsync/crilog"
	"github.com/kubewright/kubewright/podsync/podruntime"
)

var logID = podruntime.ContainerID{Pod: "uid", Name: "main"}

// writeLog writes a log and returns its path.
func writeLog(t testing.TB, r *Runtime, output string) string {
	t.Helper()
	path := r.logPath(logID)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, crilog.Append(nil, time.Unix(1, 0), crilog.Stdout, []byte(output)), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLogTailOfAContainer(t *testing.T) {
	r := newRuntime(t, criserver.Start(t))
	if got, err := r.LogTail(t.Context(), logID, 5); err != nil || len(got) != 0 {
		t.Errorf("before it printed: %q, %v", got, err)
	}
	writeLog(t, r, "one\nthree\n")
	if got, err := r.LogTail(t.Context(), logID, 5); err != nil || string(got) != "hree\n" {
		t.Errorf("%q, %v", got, err)
	}
}

// Of rotated logs as many are kept as configured, and Remove leaves none. A client that
// follows gets the lines of the last one.
func TestAFollowedLogSurvivesItsRotation(t *testing.T) {
	server := criserver.Start(t)
	r := newRuntime(t, server)
	spec := set(t, r, pod())
	if err := r.Start(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	path := writeLog(t, r, "before\n")
	ended := make(chan struct{})
	log, err := r.Log(logID, crilog.Options{Tail: -1, Follow: true, Ended: func() bool {
		select {
		case <-ended:
			return true
		default:
			return false
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 100)
	if n, err := log.Read(buffer); err != nil || string(buffer[:n]) != "before\n" {
		t.Fatalf("%q, %v", buffer[:n], err)
	}
	for range 4 {
		writeLog(t, r, strings.Repeat("x\n", 4))
		if err := r.rotateLogs(t.Context(), LogRotation{MaxSize: 100, MaxFiles: 3}); err != nil {
			t.Fatal(err)
		}
	}
	if old, _ := filepath.Glob(path + ".*"); len(old) != 2 {
		t.Errorf("old logs: %v, want two and the current one", old)
	}
	writeLog(t, r, "after\n")
	close(ended)
	rest, err := io.ReadAll(log)
	if err != nil || !strings.HasSuffix(string(rest), "after\n") {
		t.Errorf("%q, %v", rest, err)
	}
	_ = log.Close()
	if err := r.Stop(t.Context(), logID, podruntime.StopOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := r.Remove(t.Context(), logID); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(path + "*"); len(left) != 0 {
		t.Errorf("after Remove: %v", left)
	}
}

// containersOf is a runtime that has one container, counts lists, and may hang.
type containersOf struct {
	runtimeapi.RuntimeServiceClient
	state runtimeapi.ContainerState
	hangs bool
	lists int
}

func (c *containersOf) ListContainers(ctx context.Context, _ *runtimeapi.ListContainersRequest, _ ...grpc.CallOption) (*runtimeapi.ListContainersResponse, error) {
	c.lists++
	if c.hangs {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return &runtimeapi.ListContainersResponse{Containers: []*runtimeapi.Container{{
		Id: "a", State: c.state, Labels: map[string]string{labelUID: string(logID.Pod), labelContainer: logID.Name}, Metadata: &runtimeapi.ContainerMetadata{},
	}}}, nil
}

// A thousand followers cost the runtime a list each second, and not ten thousand.
func TestFollowersOfLogsShareAList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &containersOf{state: runtimeapi.ContainerState_CONTAINER_RUNNING}
		r := &Runtime{client: c}
		var followers []func() bool
		for range 1000 {
			followers = append(followers, r.Ended(t.Context(), logID))
		}
		poll := func(d time.Duration) (ended int) {
			for range d / (100 * time.Millisecond) {
				time.Sleep(100 * time.Millisecond)
				ended = 0
				for _, has := range followers {
					if has() {
						ended++
					}
				}
			}
			return ended
		}
		if ended := poll(10 * time.Second); ended > 0 || c.lists != 10 {
			t.Errorf("%d of a container that runs have ended after %d lists, want 10", ended, c.lists)
		}
		if r.Ended(t.Context(), podruntime.ContainerID{Pod: "uid", Name: "other"}); c.lists != 10 {
			t.Error("a function that was not called has listed")
		}
		c.state = runtimeapi.ContainerState_CONTAINER_EXITED
		if ended := poll(followInterval); ended != len(followers) {
			t.Errorf("%d of %d have ended with the container", ended, len(followers))
		}
		// A container that was started after the last list has not ended.
		c.state = runtimeapi.ContainerState_CONTAINER_RUNNING
		time.Sleep(time.Millisecond)
		if r.Ended(t.Context(), logID)() {
			t.Error("a container has ended that was not in the list yet")
		}
		// The runtime hangs: one waits for it.
		c.hangs = true
		ctx, cancel := context.WithCancel(t.Context())
		time.Sleep(followInterval)
		go r.Ended(ctx, logID)()
		synctest.Wait()
		if ended := poll(time.Minute); ended > 0 {
			t.Errorf("%d have ended while the runtime hangs", ended)
		}
		cancel()
		synctest.Wait()
	})
}

// A directory may have any name, and one that can't be read is not empty.
func TestADirectoryWithBracketsLosesNoFile(t *testing.T) {
	server := criserver.Start(t)
	r := newRuntime(t, server)
	r.cfg.LogDir = filepath.Join(r.cfg.LogDir, "a[1]*")
	r.pulledImages.dir = filepath.Join(r.pulledImages.dir, "a[1]*")
	if err := r.Start(t.Context(), set(t, r, pod())); err != nil {
		t.Fatal(err)
	}
	path := writeLog(t, r, "")
	old := func() []string {
		entries, err := os.ReadDir(filepath.Dir(path))
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	for range 4 {
		writeLog(t, r, strings.Repeat("x\n", 4))
		if err := r.rotateLogs(t.Context(), LogRotation{MaxSize: 100, MaxFiles: 3}); err != nil {
			t.Fatal(err)
		}
	}
	if names := old(); len(names) != 3 {
		t.Errorf("logs after four rotations: %v, want two old ones and the current one", names)
	}
	if err := errors.Join(r.Stop(t.Context(), logID, podruntime.StopOptions{}), r.Remove(t.Context(), logID)); err != nil {
		t.Fatal(err)
	}
	if names := old(); len(names) > 0 {
		t.Errorf("logs after Remove: %v", names)
	}
	if err := errors.Join(r.pulledImages.pulled("app:1", "sha256:1", &runtimeapi.AuthConfig{}, "uid"), r.pulledImages.forgetPod("uid")); err != nil {
		t.Fatal(err)
	}
	if rec, _, err := r.pulledImages.read("sha256:1"); err != nil || len(rec.Pods) > 0 {
		t.Errorf("the pod is not forgotten: %+v, %v", rec, err)
	}
	if err := errors.Join(os.RemoveAll(r.pulledImages.dir), os.Symlink(filepath.Base(r.pulledImages.dir), r.pulledImages.dir)); err != nil { // to itself
		t.Fatal(err)
	}
	if err := r.pulledImages.forgetPod("uid"); err == nil {
		t.Error("no error for a directory that can't be read")
	}
}

// A process is killed after it has put a log aside, so the runtime writes to that file on and on.
func TestALogThatWasPutAsideIsOpenedAgain(t *testing.T) {
	server := criserver.Start(t)
	r := newRuntime(t, server)
	if err := r.Start(t.Context(), set(t, r, pod())); err != nil {
		t.Fatal(err)
	}
	path := writeLog(t, r, "before\n")
	if err := os.Rename(path, path+".20261124-000000.000000000"); err != nil {
		t.Fatal(err)
	}
	if err := r.rotateLogs(t.Context(), LogRotation{MaxSize: 100, MaxFiles: 3}); err != nil {
		t.Fatal(err)
	}
	log, err := r.Log(logID, crilog.Options{Tail: -1})
	if err != nil {
		t.Fatal(err)
	}
	_ = log.Close()
}
