// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package explore_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/apitest/explore"
)

// only returns a configuration with the faults of these names, and short waits.
func only(names ...string) explore.Config {
	return explore.Config{
		InProcess: true, Settle: 10 * time.Second, Deadline: time.Minute,
		Faults: slices.DeleteFunc(explore.Faults(), func(f explore.Fault) bool { return !slices.Contains(names, f.Name) }),
	}
}

func plans(r explore.Report) (plans []string) {
	for _, f := range r.Findings {
		plans = append(plans, f.Plan)
	}
	return plans
}

// loop calls f every second until ctx is done.
func loop(ctx context.Context, f func() error) error {
	for ctx.Err() == nil {
		_ = f()
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
	return nil
}

func create(ctx context.Context, p *explore.Process, name string) error {
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
	_, err := kubernetes.NewForConfigOrDie(p.Config).CoreV1().ConfigMaps("default").Create(ctx, m, metav1.CreateOptions{})
	return err
}

func has(w *explore.World, name string) func() bool {
	return func() bool { return apitest.Get[*corev1.ConfigMap](w.Server, "default", name) != nil }
}

// A process that has crashed does nothing any more: no request, no call, no write to its
// directory that the next one sees.
func TestNothingOfADeadProcessHasAnEffect(t *testing.T) {
	report := explore.Find(t, only("crash before", "crash after"), func(w *explore.World) explore.Scenario {
		var mu sync.Mutex
		var outside []string
		closed := 0
		return explore.Scenario{
			Programs: []explore.Program{{Name: "p", Run: func(ctx context.Context, p *explore.Process) error {
				dir, err := p.Dir()
				if err != nil {
					return err
				}
				last, _ := os.ReadFile(filepath.Join(dir, "state"))
				p.OnCrash(func() {
					mu.Lock()
					defer mu.Unlock()
					closed++
				})
				note := func(what string) error {
					return p.Call(what, func() {
						mu.Lock()
						defer mu.Unlock()
						outside = append(outside, fmt.Sprint(p.Start, " ", what))
					})
				}
				if string(last) == "ended" || string(last) == "ends" && p.Start == 0 {
					return errors.New("the end of a dead process was written")
				}
				_ = create(ctx, p, "first")
				_ = note("work")
				_ = os.WriteFile(filepath.Join(dir, "state"), []byte("works"), 0o600)
				_ = create(ctx, p, "second")
				<-ctx.Done()
				// The graceful end. After a crash, none of it may have an effect.
				late := context.WithoutCancel(ctx)
				_ = os.WriteFile(filepath.Join(dir, "state"), []byte("ended"), 0o600)
				if err := create(late, p, fmt.Sprint("end-", p.Start)); err == nil && p.Start == 0 {
					_ = note("end")
				}
				return nil
			}}},
			Steps: []explore.Step{{Name: "both", Until: func() bool { return has(w, "first")() && has(w, "second")() }}},
			Always: []explore.Invariant{{Name: "no end of a process that has crashed", Holds: func() error {
				mu.Lock()
				defer mu.Unlock()
				if closed > 0 && (slices.Contains(outside, "0 end") || has(w, "end-0")()) {
					return fmt.Errorf("%v", outside)
				}
				if closed > 1 {
					return fmt.Errorf("OnCrash was called %d times", closed)
				}
				return nil
			}}},
		}
	})
	if len(report.Findings) > 0 {
		t.Errorf("findings: %s", report.Findings[0].Story)
	}
	if report.Plans != 6 || report.Missed != 0 {
		t.Errorf("%d plans, %d missed; want two for each of two writes and a call", report.Plans, report.Missed)
	}
}

// A program that takes the answer to a write to arrive before the events about it is found.
func TestAnswersThatComeAfterTheEvents(t *testing.T) {
	report := explore.Find(t, only("late answer", "slow", "late events"), func(w *explore.World) explore.Scenario {
		return explore.Scenario{
			Programs: []explore.Program{{Name: "p", Run: func(ctx context.Context, p *explore.Process) error {
				maps := kubernetes.NewForConfigOrDie(p.Config).CoreV1().ConfigMaps("default")
				stream, err := maps.Watch(ctx, metav1.ListOptions{})
				if err != nil {
					return err
				}
				defer stream.Stop()
				var answered atomic.Bool
				var work sync.WaitGroup
				defer work.Wait()
				work.Go(func() {
					_ = create(ctx, p, "a")
					answered.Store(true)
				})
				for event := range stream.ResultChan() {
					if m, ok := event.Object.(*corev1.ConfigMap); !ok || m.Name != "a" {
						continue
					}
					time.Sleep(100 * time.Millisecond)
					if !answered.Load() {
						_ = create(ctx, p, "unknown")
					}
				}
				return nil
			}}},
			Steps: []explore.Step{{Name: "a", Until: has(w, "a")}},
			Finally: func() error {
				if has(w, "unknown")() {
					return errors.New("an event about an object that was unknown")
				}
				return nil
			},
		}
	})
	if got, want := plans(report), []string{"late answer @ p: create configmaps default/a #1"}; !slices.Equal(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
}

// The next process has the files as they were at the crash.
func TestDirectoryIsThatOfTheCrash(t *testing.T) {
	report := explore.Find(t, only("crash after"), func(w *explore.World) explore.Scenario {
		var mu sync.Mutex
		var got []string
		return explore.Scenario{
			Programs: []explore.Program{{Name: "p", Run: func(ctx context.Context, p *explore.Process) error {
				dir, err := p.Dir()
				if err != nil {
					return err
				}
				file := filepath.Join(dir, "file")
				b, _ := os.ReadFile(file)
				mu.Lock()
				got = append(got, string(b))
				mu.Unlock()
				_ = os.WriteFile(file, []byte("before"), 0o600)
				_ = create(ctx, p, "a")
				_ = os.WriteFile(file, []byte("after"), 0o600)
				<-ctx.Done()
				return nil
			}}},
			Steps: []explore.Step{{Name: "a", Until: has(w, "a")}},
			Finally: func() error {
				mu.Lock()
				defer mu.Unlock()
				if len(got) == 2 && !slices.Equal(got, []string{"", "before"}) {
					return fmt.Errorf("%q", got)
				}
				return nil
			},
		}
	})
	if len(report.Findings) > 0 || report.Plans != 1 {
		t.Errorf("%d plans, %+v", report.Plans, report.Findings)
	}
}

// The files of the next process have their modes, times and types.
func TestDirectoryHasTheModesOfTheCrash(t *testing.T) {
	report := explore.Find(t, only("crash after"), func(w *explore.World) explore.Scenario {
		old := time.Unix(1e9, 0)
		var mu sync.Mutex
		var wrong error
		return explore.Scenario{
			Programs: []explore.Program{{Name: "p", Run: func(ctx context.Context, p *explore.Process) error {
				dir, err := p.Dir()
				if err != nil {
					return err
				}
				key, secret := filepath.Join(dir, "secret", "key"), filepath.Join(dir, "secret")
				link, socket := filepath.Join(dir, "link"), filepath.Join(dir, "socket")
				if p.Start > 0 {
					mu.Lock()
					defer mu.Unlock()
					wrong = errors.Join(is(secret, fs.ModeDir|0o710), is(key, 0o640), is(link, fs.ModeSymlink), is(socket, fs.ModeSocket))
					if to, err := os.Readlink(link); err != nil || to != key {
						wrong = errors.Join(wrong, fmt.Errorf("the link is to %q, %v", to, err))
					}
					if info, err := os.Stat(key); err != nil || !info.ModTime().Equal(old) {
						wrong = errors.Join(wrong, fmt.Errorf("the time of the file is not kept, %v", err))
					}
					if _, err := net.Listen("unix", socket); err == nil {
						wrong = errors.Join(wrong, errors.New("the old socket is gone"))
					}
					return nil
				}
				l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
				if err != nil {
					return err
				}
				defer l.Close()
				if err := errors.Join(os.Mkdir(secret, 0o700), os.WriteFile(key, nil, 0o600), os.Symlink(key, link),
					os.Chmod(secret, 0o710), os.Chmod(key, 0o640), os.Chtimes(key, old, old)); err != nil {
					return err
				}
				return loop(ctx, func() error { return create(ctx, p, "a") })
			}}},
			Steps: []explore.Step{{Name: "a", Until: has(w, "a")}},
			Finally: func() error {
				mu.Lock()
				defer mu.Unlock()
				return wrong
			},
		}
	})
	if len(report.Findings) > 0 || report.Plans != 1 {
		t.Errorf("%d plans, %+v", report.Plans, report.Findings)
	}
}

// is returns an error if a file does not have a type, and the permissions if mode has any.
func is(file string, mode fs.FileMode) error {
	info, err := os.Lstat(file)
	if err != nil {
		return err
	}
	if got := info.Mode(); got.Type() != mode.Type() || mode.Perm() != 0 && got.Perm() != mode.Perm() {
		return fmt.Errorf("%s has mode %v, want %v", filepath.Base(file), got, mode)
	}
	return nil
}

// Each kind of finding is reported with its plan, by a child process.
func TestKindsOfFindings(t *testing.T) {
	for name, c := range map[string]struct {
		bad  func(ctx context.Context, p *explore.Process) // the second process
		want string
	}{
		"panic": {func(context.Context, *explore.Process) { panic("a bug") }, "panic of p: a bug"},
		"panic of a goroutine": {func(ctx context.Context, _ *explore.Process) {
			go func() { panic("a bug in a goroutine") }()
			<-ctx.Done()
		}, "the process of the run has died"},
		"exit": {func(context.Context, *explore.Process) { os.Exit(7) }, "exit status 7"},
		"left goroutine": {func(context.Context, *explore.Process) {
			go func() { <-make(chan int) }()
		}, "goroutines are left"},
		"hang": {func(context.Context, *explore.Process) { select {} }, "did not return within"},
		"loop": {func(ctx context.Context, p *explore.Process) {
			for ctx.Err() == nil {
				_ = create(ctx, p, "a")
			}
		}, "requests within"},
		"too many requests": {func(ctx context.Context, p *explore.Process) {
			for ctx.Err() == nil {
				_ = create(ctx, p, "a")
				time.Sleep(10 * time.Millisecond)
			}
		}, "the reference has"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := only("crash after")
			cfg.InProcess = false
			report := explore.Find(t, cfg, func(w *explore.World) explore.Scenario {
				return explore.Scenario{
					Programs: []explore.Program{{Name: "p", Run: func(ctx context.Context, p *explore.Process) error {
						if p.Start == 1 {
							c.bad(ctx, p)
						}
						return loop(ctx, func() error { return create(ctx, p, "a") })
					}}},
					Steps: []explore.Step{{Name: "a", Until: has(w, "a")}},
				}
			})
			if len(report.Findings) != 1 {
				t.Fatalf("%d findings: %+v", len(report.Findings), report.Findings)
			}
			f := report.Findings[0]
			if f.Plan != "crash after @ p: create configmaps default/a #1" || f.Runs != 3 || f.Failed != 3 || !strings.Contains(f.Story, c.want) {
				t.Errorf("%s failed in %d of %d runs: %s", f.Plan, f.Failed, f.Runs, f.Story)
			}
		})
	}
}

// A bug that needs two faults is found as a pair, and one that needs one of them is
// reported as that one.
func TestPairs(t *testing.T) {
	scenario := func(needed int64) func(w *explore.World) explore.Scenario {
		return func(w *explore.World) explore.Scenario {
			var starts atomic.Int64
			return explore.Scenario{
				Programs: []explore.Program{{Name: "p", Run: func(ctx context.Context, p *explore.Process) error {
					starts.Store(int64(p.Start))
					for _, name := range []string{"a", "b", "c"} {
						_ = create(ctx, p, name)
					}
					<-ctx.Done()
					return nil
				}}},
				Steps: []explore.Step{{Name: "c", Until: has(w, "c")}},
				Always: []explore.Invariant{{Name: "few starts", Holds: func() error {
					if n := starts.Load(); n >= needed {
						return fmt.Errorf("%d starts", n)
					}
					return nil
				}}},
			}
		}
	}
	cfg := only("crash before")
	cfg.Budget, cfg.Seed = time.Second, 1
	if r := explore.Find(t, cfg, scenario(1)); slices.ContainsFunc(plans(r), func(p string) bool { return strings.Contains(p, " + ") }) || len(r.Findings) == 0 {
		t.Errorf("findings %q, want plans with one fault", plans(r))
	}
	r := explore.Find(t, cfg, scenario(2))
	if len(r.Findings) == 0 || r.Pairs == 0 {
		t.Fatalf("%d pairs, and nothing found", r.Pairs)
	}
	for _, p := range plans(r) {
		if strings.Count(p, " + ") != 1 {
			t.Errorf("finding %q, want a pair", p)
		}
	}
}

// The same Seed and Pairs give the same plans, and not more than Pairs.
func TestPairsAreReproducible(t *testing.T) {
	cfg := only("crash before", "crash after")
	cfg.Pairs, cfg.Seed = 70, 3 // more than one batch
	run := func() explore.Report {
		return explore.Find(t, cfg, func(w *explore.World) explore.Scenario {
			starts, early := 0, false // read by Finally alone, when the program waits
			return explore.Scenario{
				Programs: []explore.Program{{Name: "p", Run: func(ctx context.Context, p *explore.Process) error {
					starts = p.Start
					early = early || p.Start == 1 && !has(w, "m1")()
					for i := range 12 {
						_ = create(ctx, p, fmt.Sprint("m", i))
					}
					<-ctx.Done()
					return nil
				}}},
				Finally: func() error {
					if early && starts > 1 {
						return errors.New("two restarts, the first of them early")
					}
					return nil
				},
			}
		})
	}
	a, b := run(), run()
	if a.Pairs != 70 || len(a.Findings) == 0 || len(a.Findings) > 50 {
		t.Errorf("%d pairs, %d findings", a.Pairs, len(a.Findings))
	}
	if x, y := plans(a), plans(b); !slices.Equal(x, y) {
		t.Errorf("%q and then %q", x, y)
	}
}

// A program can be hit while another client acts. It does not have to write then.
func TestStepsArePlaces(t *testing.T) {
	scenario := func(w *explore.World) explore.Scenario {
		var restarts atomic.Int64
		flag := func(v string) func() error {
			return func() error {
				w.Server.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "flag"}, Data: map[string]string{"v": v}})
				return nil
			}
		}
		return explore.Scenario{
			Programs: []explore.Program{
				{Name: "p", Run: func(ctx context.Context, p *explore.Process) error {
					restarts.Store(int64(p.Start))
					first := false // only in memory
					return loop(ctx, func() error {
						m, err := kubernetes.NewForConfigOrDie(p.Config).CoreV1().ConfigMaps("default").Get(ctx, "flag", metav1.GetOptions{})
						switch {
						case err != nil:
							return err
						case m.Data["v"] == "1":
							first = true
							return create(ctx, p, "seen")
						case first:
							return create(ctx, p, "done")
						}
						return nil
					})
				}},
				{Name: "helper", Undisturbed: true, Run: func(ctx context.Context, p *explore.Process) error {
					for ctx.Err() == nil {
						_ = create(ctx, p, "help")
						for n := restarts.Swap(0); n > 0; n-- { // many requests after a crash
							for range 200 {
								_ = create(ctx, p, "help")
							}
						}
						select {
						case <-ctx.Done():
						case <-time.After(time.Second):
						}
					}
					return nil
				}},
			},
			Steps: []explore.Step{
				{Name: "one", Do: flag("1"), Until: has(w, "seen")},
				{Name: "a pause"},
				{Name: "two", Do: flag("2"), Until: has(w, "done")},
			},
		}
	}
	cfg := only("crash before")
	report := explore.Find(t, cfg, scenario)
	want := []string{"crash before @ p: step two #1", "crash before @ p: create configmaps default/done #1"}
	if got := plans(report); report.Plans < 4 || !slices.Equal(got, want) {
		t.Errorf("%d plans, findings %q, want %q", report.Plans, got, want)
	}
	// Objects are hit once at a step, however many programs there are.
	var counts []int
	for _, undisturbed := range []bool{true, false} {
		report = explore.Find(t, only("edit"), func(w *explore.World) explore.Scenario {
			s := scenario(w)
			s.Programs[1].Undisturbed = undisturbed
			s.Programs[1].Run = func(ctx context.Context, _ *explore.Process) error { <-ctx.Done(); return nil }
			return s
		})
		if len(report.Findings) > 0 {
			t.Errorf("%q", plans(report))
		}
		counts = append(counts, report.Plans)
	}
	if counts[0] != counts[1] {
		t.Errorf("%d plans with one program, %d with two", counts[0], counts[1])
	}
}

// The events of one resource can come later than those of another that happened after
// them.
func TestLateResource(t *testing.T) {
	report := explore.Find(t, only("late", "late events"), func(w *explore.World) explore.Scenario {
		var synced atomic.Bool
		return explore.Scenario{
			Programs: []explore.Program{{Name: "p", Run: func(ctx context.Context, p *explore.Process) error {
				factory := informers.NewSharedInformerFactory(kubernetes.NewForConfigOrDie(p.Config), 0)
				maps, secrets := factory.Core().V1().ConfigMaps().Lister(), factory.Core().V1().Secrets().Lister()
				factory.StartWithContext(ctx)
				factory.WaitForCacheSyncWithContext(ctx)
				synced.Store(true)
				defer factory.Shutdown()
				return loop(ctx, func() error {
					if _, err := maps.ConfigMaps("default").Get("request"); err != nil {
						return err
					}
					if _, err := secrets.Secrets("default").Get("password"); err != nil {
						return create(ctx, p, "refused")
					}
					return create(ctx, p, "granted")
				})
			}}},
			Steps: []explore.Step{
				{Name: "ready", Until: synced.Load},
				{Name: "a request", Do: func() error {
					w.Server.Put(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "password"}})
					w.Server.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "request"}})
					return nil
				}, Until: has(w, "granted")},
			},
		}
	})
	if got, want := plans(report), []string{"late secrets @ p: step a request #1"}; !slices.Equal(got, want) {
		t.Errorf("%d plans, findings %q, want %q", report.Plans, got, want)
	}
	// At the step and at the creation: all events, or those of one of two resources.
	if report.Plans != 6 {
		t.Errorf("%d plans, want 6", report.Plans)
	}
}

// A paused process does nothing for a minute, while another one works on another host.
// Then its write arrives.
func TestTakeover(t *testing.T) {
	report := explore.Find(t, only("takeover"), func(w *explore.World) explore.Scenario {
		var mu sync.Mutex
		var did []string
		var at []time.Duration
		begun := time.Now()
		return explore.Scenario{
			Programs: []explore.Program{{Name: "p", Run: func(ctx context.Context, p *explore.Process) error {
				var work sync.WaitGroup
				defer work.Wait()
				for _, what := range []string{"a", "b"} { // the other goroutines of the process are paused too
					work.Go(func() {
						_ = loop(ctx, func() error {
							if err := p.Call(what, func() {
								mu.Lock()
								defer mu.Unlock()
								did, at = append(did, p.Host+" "+what), append(at, time.Since(begun))
							}); err != nil {
								return err
							}
							return create(ctx, p, p.Host+"-"+what)
						})
					})
				}
				return nil
			}}},
			Steps: []explore.Step{{Name: "b", Until: has(w, "host-1-b")}},
			Finally: func() error {
				if !has(w, "host-2-a")() {
					return nil // the reference
				}
				mu.Lock()
				defer mu.Unlock()
				var last time.Duration
				gap := time.Duration(0)
				for i, d := range did {
					if strings.HasPrefix(d, "host-1") {
						gap, last = max(gap, at[i]-last), at[i]
					}
				}
				if gap < time.Minute || gap > time.Minute+2*time.Second {
					return fmt.Errorf("the first process was paused for %v", gap)
				}
				return nil
			},
		}
	})
	for _, f := range report.Findings {
		if !strings.Contains(f.Problem, "host-2-a: exists, but not in the reference") {
			t.Errorf("%s", f.Story)
		}
	}
	if len(report.Findings) == 0 {
		t.Errorf("%d plans, and none with a second host", report.Plans)
	}
}

// A fault of the caller's own can crash a program.
func TestCrashOfAProgram(t *testing.T) {
	cfg := only()
	cfg.Faults = []explore.Fault{{Name: "reboot", Do: func(w *explore.World) { w.Crash("p"); w.Crash("q") }}}
	report := explore.Find(t, cfg, func(w *explore.World) explore.Scenario {
		var starts atomic.Int64
		return explore.Scenario{
			Programs: []explore.Program{{Name: "p", Run: func(ctx context.Context, p *explore.Process) error {
				starts.Add(1)
				_ = create(ctx, p, fmt.Sprint("p-", p.Start))
				<-ctx.Done()
				return nil
			}}},
			Steps: []explore.Step{{Name: "a request", Until: has(w, "p-0")}},
			Always: []explore.Invariant{{Name: "one start", Holds: func() error {
				if n := starts.Load(); n > 1 {
					return fmt.Errorf("%d starts", n)
				}
				return nil
			}}},
		}
	})
	if len(report.Findings) != 1 || report.Findings[0].Plan != "reboot @ p: create configmaps default/p-0 #1" || !strings.Contains(report.Findings[0].Problem, "2 starts") {
		t.Errorf("%+v", report.Findings)
	}
	if !strings.Contains(report.Findings[0].Story, "-- p crashes") {
		t.Errorf("%s", report.Findings[0].Story)
	}
}

// An object is deleted also if the resource of its kind can't be guessed.
func TestObjectsOfOwnKindsAreDeleted(t *testing.T) {
	gateway := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Gateway"}
	cfg := only("delete", "recreate")
	cfg.Options.Kinds = []apitest.Kind{{GroupVersionKind: gateway, Resource: "gateways"}}
	report := explore.Find(t, cfg, func(w *explore.World) explore.Scenario {
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(gateway)
		u.SetNamespace("default")
		u.SetName("g")
		uid := w.Server.Put(u).(*unstructured.Unstructured).GetUID()
		return explore.Scenario{
			Programs: []explore.Program{{Name: "p", Run: func(ctx context.Context, p *explore.Process) error {
				_ = create(ctx, p, "a")
				<-ctx.Done()
				return nil
			}}},
			Steps: []explore.Step{{Name: "a", Until: has(w, "a")}},
			Always: []explore.Invariant{{Name: "the gateway", Holds: func() error {
				for _, obj := range w.Server.Objects() {
					if u, ok := obj.(*unstructured.Unstructured); ok {
						if u.GetUID() != uid {
							return errors.New("another gateway")
						}
						return nil
					}
				}
				return errors.New("no gateway")
			}}},
		}
	})
	want := []string{
		"delete Gateway default/g @ p: create configmaps default/a #1", "recreate Gateway default/g @ p: create configmaps default/a #1",
		"delete Gateway default/g @ p: rest a #1",
	}
	if got := plans(report); !slices.Equal(got, want) {
		t.Errorf("%d plans, findings %q, want %q", report.Plans, got, want)
	}
}

// An answer of 403 that the reference did not have is a finding on request.
func TestRefused(t *testing.T) {
	for _, asked := range []bool{false, true} {
		cfg := only("crash after")
		cfg.Refused = asked
		report := explore.Find(t, cfg, func(w *explore.World) explore.Scenario {
			return explore.Scenario{
				Programs: []explore.Program{{Name: "p", User: apitest.NodeUser("n1"), Run: func(ctx context.Context, p *explore.Process) error {
					client := kubernetes.NewForConfigOrDie(p.Config).CoreV1()
					_, _ = client.Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, metav1.CreateOptions{})
					if p.Start > 0 {
						_, _ = client.Secrets("default").Get(ctx, "foreign", metav1.GetOptions{})
					}
					<-ctx.Done()
					return nil
				}}},
				Steps: []explore.Step{{Name: "a node", Until: func() bool { return apitest.Get[*corev1.Node](w.Server, "", "n1") != nil }}},
			}
		})
		if found := len(report.Findings) > 0; found != asked {
			t.Errorf("Refused %v: findings %q", asked, plans(report))
		}
		if asked && report.Findings[0].Problem != "answered with 403: get secrets default/foreign" {
			t.Errorf("%s", report.Findings[0].Problem)
		}
	}
}

func TestSample(t *testing.T) {
	cfg := explore.Config{InProcess: true, Sample: 5, Settle: time.Second}
	if r := explore.Find(t, cfg, twinsScenario(true)); r.Plans != 5 {
		t.Errorf("%d plans, want 5", r.Plans)
	}
}

// Each fault of the default reaches its place in a scenario that survives all of them.
func TestEachFaultActs(t *testing.T) {
	for _, f := range explore.Faults() {
		if f.Name == "late" || f.Name == "prune" {
			continue // see TestLateResource and TestOutside
		}
		t.Run(f.Name, func(t *testing.T) {
			report := explore.Find(t, only(f.Name), twinsScenario(true))
			if slices.Contains([]string{"late events", "dropped events", "short watches", "stale 1", "stale 2", "stale 4"}, f.Name) {
				if report.Missed != report.Plans {
					t.Errorf("%d of %d plans had an effect on a program without watches", report.Plans-report.Missed, report.Plans)
				}
				report = explore.Find(t, only(f.Name), followScenario)
			}
			if report.Plans == 0 || report.Missed > 0 || len(report.Findings) > 0 {
				t.Errorf("%d plans, %d missed, findings %q", report.Plans, report.Missed, plans(report))
			}
		})
	}
}

// follow copies the ConfigMap "in" to "out" with an informer. It gets what it writes back
// as events.
func follow(ctx context.Context, p *explore.Process) error {
	client := kubernetes.NewForConfigOrDie(p.Config)
	f := informers.NewSharedInformerFactory(client, 0)
	inf := f.Core().V1().ConfigMaps()
	lister := inf.Lister().ConfigMaps("default")
	f.StartWithContext(ctx)
	defer f.Shutdown()
	maps := client.CoreV1().ConfigMaps("default")
	return loop(ctx, func() error {
		in, err := lister.Get("in")
		if err != nil {
			return err
		}
		out, err := maps.Get(ctx, "out", metav1.GetOptions{})
		switch {
		case err != nil:
			_, err = maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "out"}, Data: in.Data}, metav1.CreateOptions{})
		case out.Data["v"] != in.Data["v"]:
			out.Data = in.Data
			_, err = maps.Update(ctx, out, metav1.UpdateOptions{})
		}
		return err
	})
}

func followScenario(w *explore.World) explore.Scenario {
	set := func(v string) func() error {
		return func() error {
			for _, name := range []string{"other", "in"} {
				w.Server.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Data: map[string]string{"v": v}})
			}
			return nil
		}
	}
	copied := func(v string) func() bool {
		return func() bool {
			out := apitest.Get[*corev1.ConfigMap](w.Server, "default", "out")
			return out != nil && out.Data["v"] == v
		}
	}
	return explore.Scenario{
		Programs: []explore.Program{{Name: "follow", Run: follow}},
		Steps: []explore.Step{
			{Name: "1", Do: set("1"), Until: copied("1")},
			{Name: "2", Do: set("2"), Until: copied("2")},
		},
	}
}

// A program whose informer starts with an older list is found if it can't bear that, and a
// fault that has no effect is not counted as tried.
func TestStalenessArrivesInInformers(t *testing.T) {
	report := explore.Find(t, only("stale 1", "stale 2", "stale 4"), func(w *explore.World) explore.Scenario {
		s := followScenario(w)
		back := false
		was := ""
		s.Always = []explore.Invariant{{Name: "out does not go back", Holds: func() error {
			if out := apitest.Get[*corev1.ConfigMap](w.Server, "default", "out"); out != nil {
				back = back || out.Data["v"] < was
				was = out.Data["v"]
			}
			if back {
				return errors.New("it has an older value")
			}
			return nil
		}}}
		return s
	})
	if got := plans(report); len(got) == 0 || !slices.Contains(got, "stale 4 @ follow: update configmaps default/out #1") {
		t.Errorf("%d plans, %d missed, found %q", report.Plans, report.Missed, got)
	}
	for _, f := range report.Faults {
		if f.Acted == 0 || f.Plans == 0 {
			t.Errorf("%+v", f)
		}
	}
}

// The only label of an object can differ from run to run without hiding or inventing a
// difference of another object.
func TestOnlyLabelDiffers(t *testing.T) {
	run := 0
	report := explore.Find(t, only("500"), func(w *explore.World) explore.Scenario {
		run++
		for name, label := range map[string]string{"random": fmt.Sprint(run), "fixed": "x"} {
			w.Server.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{name: label}}})
		}
		return explore.Scenario{
			Programs: []explore.Program{{Name: "p", Run: func(ctx context.Context, p *explore.Process) error {
				if create(ctx, p, "a") != nil {
					apitest.Edit(w.Server, "default", "fixed", func(m *corev1.ConfigMap) { m.Labels["fixed"] = "y" })
				}
				return loop(ctx, func() error { return create(ctx, p, "a") })
			}}},
			Steps: []explore.Step{{Name: "a", Until: has(w, "a")}},
		}
	})
	if len(report.Findings) != 1 || !strings.Contains(report.Findings[0].Problem, `ConfigMap default/fixed .metadata.labels.fixed: "y", in the reference "x"`) {
		t.Errorf("%+v", report.Findings)
	}
}

// settled is a program that keeps a ConfigMap for each ConfigMap with the label "of", if it
// sees the events that its bugs leave.
func settled(bug string) func(w *explore.World) explore.Scenario {
	return func(w *explore.World) explore.Scenario {
		return explore.Scenario{
			Programs: []explore.Program{{Name: "p", Run: func(ctx context.Context, p *explore.Process) error {
				client := kubernetes.NewForConfigOrDie(p.Config)
				maps := client.CoreV1().ConfigMaps("default")
				f := informers.NewSharedInformerFactory(client, 0)
				inf := f.Core().V1().ConfigMaps().Informer()
				wake := make(chan struct{}, 1)
				poke := func() {
					select {
					case wake <- struct{}{}:
					default:
					}
				}
				_, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{
					AddFunc: func(any) { poke() }, UpdateFunc: func(any, any) { poke() },
					DeleteFunc: func(obj any) {
						switch bug {
						case "no deletions", "no controller":
							return
						case "tombstones":
							_ = obj.(*corev1.ConfigMap) // not that of an object whose deletion was missed
						}
						poke()
					},
				})
				if err != nil {
					return err
				}
				f.StartWithContext(ctx)
				defer f.Shutdown()
				for {
					select {
					case <-ctx.Done():
						return nil
					case <-wake:
					}
					time.Sleep(time.Second)
					owner, err := maps.Get(ctx, "app", metav1.GetOptions{})
					switch {
					case apierrors.IsNotFound(err):
						continue
					case err != nil:
						poke()
						continue
					case owner.DeletionTimestamp != nil:
						if bug != "no finalization" {
							owner.Finalizers = nil
							if _, err := maps.Update(ctx, owner, metav1.UpdateOptions{}); err != nil {
								poke()
							}
						}
						continue
					case len(owner.Finalizers) == 0:
						owner.Finalizers = []string{"example.com/settled"}
						if _, err := maps.Update(ctx, owner, metav1.UpdateOptions{}); err != nil {
							poke()
						}
						continue
					}
					child := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "app-child"}}
					if bug != "no owner" {
						child.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner, corev1.SchemeGroupVersion.WithKind("ConfigMap"))}
					}
					if bug == "no controller" {
						child.OwnerReferences[0].Controller = nil
					}
					if _, err := maps.Create(ctx, child, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
						poke()
					}
				}
			}}},
			Steps: []explore.Step{{Name: "app", Do: func() error {
				w.Server.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "app"}})
				return nil
			}, Until: has(w, "app-child")}},
		}
	}
}

// What is missing in a program that does nothing wrong while it works is found at rest.
func TestRest(t *testing.T) {
	for bug, want := range map[string][]string{
		"":             nil,
		"no deletions": {"delete ConfigMap default/app-child @ p: rest app #1"}, // a new list has an event for app
		// Owns of controller-runtime ignores an owner that is no controller.
		"no controller": {"delete ConfigMap default/app-child @ p: rest app #1"},
		"tombstones":    {"delete unseen ConfigMap default/app-child @ p: rest app #1"},
		"no finalization": {
			"delete unseen ConfigMap default/app @ p: rest app #1", "delete ConfigMap default/app @ p: rest app #1",
		},
		"no owner": {
			"delete unseen ConfigMap default/app @ p: rest app #1", "delete ConfigMap default/app @ p: rest app #1",
		},
	} {
		t.Run(bug, func(t *testing.T) {
			cfg := only("delete", "delete unseen", "edit")
			cfg.InProcess = bug != "tombstones" // which panic
			report := explore.Find(t, cfg, settled(bug))
			got := slices.DeleteFunc(plans(report), func(p string) bool { return !strings.Contains(p, ": rest ") })
			if !slices.Equal(got, want) {
				t.Errorf("%d plans, found %q, want %q", report.Plans, got, want)
			}
			for _, f := range report.Findings {
				t.Logf("%s: %s", f.Plan, f.Problem)
			}
		})
	}
}

// A program that does not yet know that an owner is gone makes its child again, and the garbage
// collector removes it, as in a cluster: now and then, and not at once each time.
func TestGarbageIsNotCollectedAtOnce(t *testing.T) {
	report := explore.Find(t, only("delete"), func(w *explore.World) explore.Scenario {
		w.Server.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "app"}})
		var knows atomic.Bool
		return explore.Scenario{
			Outside: []explore.Outside{{Name: "disk", List: func() []string {
				if knows.Load() {
					return []string{"app"}
				}
				return nil
			}}},
			Programs: []explore.Program{{Name: "p", Run: func(ctx context.Context, p *explore.Process) error {
				maps := kubernetes.NewForConfigOrDie(p.Config).CoreV1().ConfigMaps("default")
				var owner *corev1.ConfigMap
				var asked time.Time
				for ctx.Err() == nil {
					if time.Since(asked) > 8*time.Second {
						owner, _ = maps.Get(ctx, "app", metav1.GetOptions{})
						asked = time.Now()
						knows.Store(owner.GetName() != "")
					}
					if owner.GetName() != "" && !has(w, "app-child")() { // known at once, as from an informer
						_, _ = maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
							Name: "app-child", OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, corev1.SchemeGroupVersion.WithKind("ConfigMap"))},
						}}, metav1.CreateOptions{})
					}
					time.Sleep(time.Millisecond)
				}
				return nil
			}}},
			Steps: []explore.Step{{Name: "made", Until: has(w, "app-child")}},
		}
	})
	if report.Plans == 0 || len(report.Findings) > 0 {
		t.Errorf("%d plans: %+v", report.Plans, report.Findings)
	}
}

// A fault of the caller's own is tried at rest too, where nothing else makes the program look.
func TestOwnFaultAtRest(t *testing.T) {
	for _, once := range []bool{false, true} {
		cfg := only()
		cfg.Faults = []explore.Fault{{Name: "empty it", Rest: true, Do: func(w *explore.World) {
			apitest.Edit(w.Server, "default", "a", func(m *corev1.ConfigMap) { m.Data = nil })
		}}}
		report := explore.Find(t, cfg, func(w *explore.World) explore.Scenario {
			return explore.Scenario{
				Programs: []explore.Program{{Name: "p", Run: func(ctx context.Context, p *explore.Process) error {
					maps := kubernetes.NewForConfigOrDie(p.Config).CoreV1().ConfigMaps("default")
					return loop(ctx, func() error {
						m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Data: map[string]string{"k": "v"}}
						if _, err := maps.Create(ctx, m, metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) || once {
							return err
						}
						m, err := maps.Get(ctx, "a", metav1.GetOptions{})
						if err != nil || m.Data["k"] == "v" {
							return err
						}
						m.Data = map[string]string{"k": "v"}
						_, err = maps.Update(ctx, m, metav1.UpdateOptions{})
						return err
					})
				}}},
				Steps: []explore.Step{{Name: "created", Until: has(w, "a")}},
			}
		})
		var want []string
		if once {
			want = []string{"empty it @ p: rest created #1"}
		}
		got := slices.DeleteFunc(plans(report), func(p string) bool { return !strings.Contains(p, ": rest ") })
		if !slices.Equal(got, want) || !slices.ContainsFunc(report.Faults, func(f explore.Tried) bool { return f.Acted > 0 }) {
			t.Errorf("once %v: %q, want %q; %+v", once, got, want, report.Faults)
		}
	}
}

// A program that repeats what fails every millisecond is stopped within seconds of virtual time,
// and not after ten thousand requests.
func TestAStormIsStopped(t *testing.T) {
	report := explore.Find(t, only("500"), func(w *explore.World) explore.Scenario {
		return explore.Scenario{
			Programs: []explore.Program{{Name: "p", Run: func(ctx context.Context, p *explore.Process) error {
				for failed := false; ctx.Err() == nil; time.Sleep(time.Millisecond) {
					if err := create(ctx, p, "a"); failed || err != nil && !apierrors.IsAlreadyExists(err) {
						failed = true
						continue
					}
					<-ctx.Done()
				}
				return nil
			}}},
			Steps: []explore.Step{{Name: "created", Until: func() bool { return apitest.Get[*corev1.ConfigMap](w.Server, "default", "a") != nil }}},
		}
	})
	if len(report.Findings) != 1 {
		t.Fatalf("%+v", report)
	}
	var requests int
	if _, err := fmt.Sscanf(report.Findings[0].Problem, "%d requests within", &requests); err != nil || requests > 1_500 {
		t.Errorf("%v: %s", err, report.Findings[0].Problem)
	}
}
