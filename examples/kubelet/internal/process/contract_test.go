// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package process

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/examples/kubelet/internal/shim"
	"github.com/kubewright/kubewright/internal/record"
	"github.com/kubewright/kubewright/internal/rmtree/rmtreetest"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podenv"
	"github.com/kubewright/kubewright/podsync/podruntime"
	"github.com/kubewright/kubewright/podsync/podruntimetest"
	"github.com/kubewright/kubewright/podsync/podsynctest"
)

func TestContract(t *testing.T) {
	nodes := map[podsync.Provider]*node{}
	open := func(t testing.TB, root string) podsync.Provider {
		n := openNode(t, apitest.New(apitest.Options{}), root, podruntime.Backoff{})
		nodes[n.Provider] = n
		t.Cleanup(func() { n.end(t) })
		return n.Provider
	}
	pod := func(script string, policy corev1.RestartPolicy) func() *corev1.Pod {
		return func() *corev1.Pod {
			return &corev1.Pod{Spec: corev1.PodSpec{
				RestartPolicy: policy,
				Containers:    []corev1.Container{{Name: "main", Image: "none", Command: []string{"sh", "-c", script}}},
			}}
		}
	}
	podsynctest.TestProvider(t, podsynctest.Suite{
		New: func(t testing.TB) podsync.Provider { return open(t, t.TempDir()) },
		Reopen: func(t testing.TB, old podsync.Provider) podsync.Provider {
			n := nodes[old]
			n.closed = true
			n.Close(t) // after a death there is no goroutine either
			return open(t, n.lock.Path())
		},
		Pod:       pod("exec sleep 1000", corev1.RestartPolicyAlways),
		Completes: pod("exit 0", corev1.RestartPolicyNever),
		Pods:      12, // each is several processes, and nothing here has pages
	})
}

// end closes a node and takes down its containers.
func (n *node) end(t testing.TB) {
	if n.closed {
		return // another one has its pods
	}
	ctx := context.Background()
	states, err := n.List(ctx)
	if err != nil {
		t.Error(err)
	}
	for _, s := range states {
		if _, err := n.Stop(ctx, s.Ref, podsync.StopOptions{Grace: time.Nanosecond}); err != nil {
			t.Error(err)
		}
	}
	changed := make(chan struct{}, 1)
	watching, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = n.Watch(watching, func(podsync.State) {
			select {
			case changed <- struct{}{}:
			default:
			}
		})
	})
	for _, ref := range states {
		for {
			s, err := n.Inspect(ctx, ref.Ref)
			if err != nil || s.Stopped { // released, perhaps
				break
			}
			<-changed
		}
	}
	cancel()
	wg.Wait()
	n.Close(t)
	if left, err := shim.Processes(n.lock.Path()); err != nil || len(left) > 0 {
		t.Errorf("processes left behind: %v, %v", left, err)
	}
}

func TestRuntimeKeepsItsContract(t *testing.T) {
	roots := map[podruntime.Runtime]*Root{}
	open := func(t testing.TB, path string) podruntime.Runtime {
		lock, err := Lock(path)
		if err != nil {
			t.Fatal(err)
		}
		r, err := New(context.Background(), Config{Root: lock})
		if err != nil {
			t.Fatal(err)
		}
		roots[r] = lock
		t.Cleanup(func() {
			r.Close()
			_ = lock.Close()
		})
		return r
	}
	ignores := "" // a file that the last stubborn container makes when it ignores SIGTERM
	podruntimetest.TestRuntime(t, podruntimetest.Suite{
		New: func(t testing.TB) podruntime.Runtime { return open(t, t.TempDir()) },
		Reopen: func(t testing.TB, old podruntime.Runtime) podruntime.Runtime {
			old.(*Runtime).Close()
			if err := roots[old].Close(); err != nil {
				t.Fatal(err)
			}
			return open(t, roots[old].Path())
		},
		Dir: func(r podruntime.Runtime, id podruntime.ContainerID) string {
			return roots[r].containers(string(id.Pod), id.Name)
		},
		Forever: func() corev1.Container { return script("exec sleep 1000") },
		Stubborn: func() corev1.Container {
			ignores = filepath.Join(t.TempDir(), "ignores")
			return script(`trap "" TERM; : >` + ignores + `; while true; do sleep 1000 & wait; done`)
		},
		IsStubborn: func() bool {
			_, err := os.Stat(ignores)
			return err == nil
		},
		Exits:   func(code int) corev1.Container { return script(fmt.Sprintf("exit %d", code)) },
		Command: func(code int) []string { return []string{"sh", "-c", fmt.Sprintf("echo output; exit %d", code)} },
		Hangs:   []string{"sleep", "1000"},
		Mute: func(t testing.TB, r podruntime.Runtime, pod types.UID) func() { // a file that can't be read
			file := filepath.Join(r.(*Runtime).dir(podruntime.ContainerID{Pod: pod, Name: "main"}), "running.json")
			if err := errors.Join(os.Rename(file, file+".kept"), os.WriteFile(file, []byte("{"), 0o600)); err != nil {
				t.Fatal(err)
			}
			return func() {
				if err := os.Rename(file+".kept", file); err != nil {
					t.Fatal(err)
				}
			}
		},
	})
}

func script(text string) corev1.Container {
	return corev1.Container{Name: "main", Image: "none", Command: []string{"sh", "-c", text}}
}

// newRuntime returns a Runtime in a directory of its own. Both end with the test.
func newRuntime(t *testing.T) (*Root, *Runtime) {
	t.Helper()
	lock, err := Lock(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lock.Close() })
	r, err := New(t.Context(), Config{Root: lock})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return lock, r
}

func TestListDuringStartDoesNotTakeItsSignal(t *testing.T) {
	lock, r := newRuntime(t)
	attempts := 50
	if testing.Short() {
		attempts = 10
	}
	for attempt := range attempts {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		id := podruntime.ContainerID{Pod: "uid", Name: "c", Attempt: attempt}
		c := script("exec sleep 1000")
		spec := podruntime.ContainerSpec{
			ID: id, Pod: &corev1.Pod{}, Container: &c, Dir: lock.containers("uid", "c"),
			Environment: podenv.Environment{Command: c.Command},
		}
		if err := os.MkdirAll(spec.Dir, 0o700); err != nil {
			t.Fatal(err)
		}
		started := make(chan struct{})
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for {
					if _, err := r.List(ctx, "uid"); err != nil {
						t.Errorf("List: %v", err)
						return
					}
					select {
					case <-started:
						return
					default:
					}
				}
			})
		}
		if err := r.Start(ctx, spec); err != nil {
			t.Errorf("Start: %v", err)
		}
		close(started)
		wg.Wait()
		if err := r.Stop(ctx, id, podruntime.StopOptions{Deadline: time.Now()}); err != nil {
			t.Errorf("Stop: %v", err)
		}
		for ended := false; !ended && ctx.Err() == nil; {
			list, err := r.List(ctx, "uid")
			if err != nil || len(list) != 1 {
				t.Fatalf("List: %v, %v", list, err)
			}
			ended = list[0].State == podruntime.ContainerExited
		}
		if err := r.Remove(ctx, id); err != nil {
			t.Fatalf("Remove: %v", err)
		}
		cancel()
	}
}

// A List that comes during Remove sees the whole run or none of it. From half a run
// it concluded that the shim had been killed, and waited for its end without limit.
func TestListDuringRemoveSeesAWholeRunOrNone(t *testing.T) {
	lock, r := newRuntime(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	removed := make(chan struct{})
	var lists sync.WaitGroup
	for range 2 {
		lists.Go(func() {
			for {
				list, err := r.List(ctx, "uid")
				if err != nil {
					t.Errorf("List: %v", err)
					return
				}
				for _, c := range list {
					if c.State != podruntime.ContainerExited || c.ExitCode != 3 {
						t.Errorf("a run that has ended with 3 is listed as %+v", c)
					}
				}
				select {
				case <-removed:
					return
				default:
				}
			}
		})
	}
	for attempt := range 60 {
		id := podruntime.ContainerID{Pod: "uid", Name: "c", Attempt: attempt}
		endedRun(t, r, id)
		for {
			err := r.Remove(ctx, id)
			if err == nil {
				break
			}
			if !errors.Is(err, errRuns) { // List waits for the end of its shim, which it sees at once
				t.Fatalf("Remove: %v", err)
			}
			if ctx.Err() != nil {
				t.Fatalf("a run that has ended was not let go: %v", err)
			}
		}
	}
	close(removed)
	lists.Wait()
	if left, err := os.ReadDir(lock.containers("uid", "c")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// An error means that nothing is known: podruntime would take a run that List leaves out
// for lost, and start the next one beside it.
func TestListThatCantReadADirectoryFails(t *testing.T) {
	lock, r := newRuntime(t)
	endedRun(t, r, podruntime.ContainerID{Pod: "other", Name: "c"})
	unreadable := lock.containers("uid", "")
	if err := errors.Join(os.MkdirAll(filepath.Dir(unreadable), 0o700), os.Symlink("containers", unreadable)); err != nil { // to itself
		t.Fatal(err)
	}
	for _, pod := range []types.UID{"uid", ""} {
		if list, err := r.List(t.Context(), pod); err == nil {
			t.Errorf("List(%q) returned %v and no error", pod, list)
		}
	}
	if usage, err := r.DiskUsage(t.Context(), "uid"); err == nil {
		t.Errorf("DiskUsage returned %v and no error", usage)
	}
	if _, err := New(t.Context(), Config{Root: lock}); err == nil {
		t.Error("New returned no error")
	}
	if list, err := r.List(t.Context(), "other"); err != nil || len(list) != 1 {
		t.Errorf("another pod: %v, %v", list, err)
	}
}

// The names of directories are not patterns.
func TestARootWithBrackets(t *testing.T) {
	lock, err := Lock(filepath.Join(t.TempDir(), "a[1]*"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lock.Close() })
	half := filepath.Join(lock.containers("uid", "c"), removedPrefix+"0")
	if err := os.MkdirAll(half, 0o700); err != nil {
		t.Fatal(err)
	}
	r, err := New(t.Context(), Config{Root: lock})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	if _, err := os.Stat(half); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what was being removed is there: %v", err)
	}
	id := podruntime.ContainerID{Pod: "uid", Name: "c", Attempt: 12}
	endedRun(t, r, id)
	for _, pod := range []types.UID{"uid", ""} {
		if list, err := r.List(t.Context(), pod); err != nil || len(list) != 1 || list[0].ID != id {
			t.Errorf("List(%q): %v, %v", pod, list, err)
		}
	}
	if usage, err := r.DiskUsage(t.Context(), "uid"); err != nil || usage["c"] == 0 {
		t.Errorf("DiskUsage: %v, %v", usage, err)
	}
}

// A run may leave read-only directories in its working directory, as Go's module cache
// is. The next one starts all the same, if the kubelet is not root.
func TestARunFollowsOneThatLeftAReadOnlyDirectory(t *testing.T) {
	dir := t.TempDir()
	root := filepath.Join(dir, "root")
	mod := filepath.Join(root, "mod")
	deep := filepath.Join(mod, "x")
	if err := errors.Join(os.MkdirAll(deep, 0o700), os.WriteFile(filepath.Join(deep, "go.mod"), nil, 0o400), os.Chmod(deep, 0o500), os.Chmod(mod, 0o500)); err != nil {
		t.Fatal(err)
	}
	if err := rmtreetest.AsNobody(t, dir, func() error { return link(root, nil) }); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(root); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// endedRun makes the files of a run that an earlier process has started and that has
// ended with exit code 3. It appears whole.
func endedRun(t *testing.T, r *Runtime, id podruntime.ContainerID) {
	t.Helper()
	dir := r.dir(id)
	draft := filepath.Join(filepath.Dir(dir), "draft")
	if err := os.MkdirAll(draft, 0o700); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for name, content := range map[string]any{
		"running.json": shim.Running{PID: 1 << 30, StartedAt: now},
		"exit.json":    shim.Exit{Code: 3, Reason: shim.ReasonError, StartedAt: now, FinishedAt: now},
	} {
		if err := record.Write(filepath.Join(draft, name), content); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.WriteFile(filepath.Join(draft, "starting"), nil, 0o600), syscall.Mkfifo(filepath.Join(draft, "alive"), 0o600), os.Rename(draft, dir)); err != nil {
		t.Fatal(err)
	}
}

// A process that a command of kubectl exec has left behind may not be killable at once, for example
// while it waits for a disk. Its container has not ended until then, and no other waits for it.
func TestTheRestOfARunThatHasEndedHoldsUpNoOther(t *testing.T) {
	root, err := Lock(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	ids := []podruntime.ContainerID{{Pod: "a", Name: "c"}, {Pod: "b", Name: "c"}}
	synctest.Test(t, func(t *testing.T) {
		r, err := New(t.Context(), Config{Root: root})
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range ids {
			if err := os.MkdirAll(r.dir(id), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := record.Write(filepath.Join(r.dir(id), "exit.json"), shim.Exit{Code: 3}); err != nil {
				t.Fatal(err)
			}
		}
		rest := newRun() // whose sweep goes on
		r.runs[ids[0]], r.ended[ids[1]] = rest, true
		list := func(state podruntime.ContainerState, within time.Duration) {
			t.Helper()
			begin := time.Now()
			all, err := r.List(t.Context(), "")
			if err != nil || len(all) != 2 || all[0].State != state || all[1].State != podruntime.ContainerExited || all[1].ExitCode != 3 {
				t.Errorf("%+v, %v", all, err)
			}
			if d := time.Since(begin); d != within {
				t.Errorf("the list took %v, want %v", d, within)
			}
		}
		list(podruntime.ContainerRunning, endPatience)
		list(podruntime.ContainerRunning, 0)
		r.finish(ids[0], rest)
		list(podruntime.ContainerExited, 0)
		r.Close()
	})
}
