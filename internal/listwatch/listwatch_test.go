// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package listwatch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/backoff"
	"github.com/kubewright/kubewright/internal/statuserr"
	"github.com/kubewright/kubewright/internal/testlog"
	"github.com/kubewright/kubewright/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

const (
	listTimeout   = time.Minute
	answerTimeout = 10 * time.Second
)

var pods = apitest.Match{Resource: "pods"}

// subject is an informer with a source of this package, in a bubble.
type subject struct {
	*testlog.T
	server   *apitest.Server
	informer cache.SharedIndexInformer
	wait     time.Duration // the delay that Outcome returns

	endsEarly   atomic.Bool            // each stream ends after its first event
	beforeWatch atomic.Pointer[func()] // is called before the next watch begins

	mu   sync.Mutex
	seen []error // recorded by Outcome

	cancel context.CancelFunc
	done   chan struct{}
}

func bubble(t *testing.T, test func(*subject)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &subject{T: testlog.New(t), server: apitest.New(apitest.Options{})}
		s.put("one", "n1")
		s.put("other", "n2")
		client := s.server.Client(apitest.User{}).CoreV1().Pods("default")
		s.informer = cache.NewSharedIndexInformer(New(Config{
			List: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return client.List(ctx, o) },
			Watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				if f := s.beforeWatch.Swap(nil); f != nil {
					(*f)()
				}
				w, err := client.Watch(ctx, o)
				if err == nil && s.endsEarly.Load() {
					w = firstEvent(w)
				}
				return w, err
			},
			FieldSelector: "spec.nodeName=n1",
			ListTimeout:   listTimeout,
			AnswerTimeout: answerTimeout,
			Retries:       backoff.Policy{Base: time.Second, Cap: 30 * time.Second},
			Outcome: func(_ context.Context, err error) time.Duration {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.seen = append(s.seen, err)
				return s.wait
			},
		}), &corev1.Pod{}, 0, nil)
		test(s)
		s.stop()
	})
}

// A proxy that closes each stream after its first event, which is before the end of a streamed
// list, does not make an informer spin.
func TestStreamsThatEndEarly(t *testing.T) {
	bubble(t, func(s *subject) {
		s.endsEarly.Store(true)
		s.server.Inject(apitest.Fault{Match: pods, Latency: 100 * time.Millisecond})
		s.start()
		s.pass(30 * time.Minute)
		if n := len(s.server.Requests(pods)); n < 20 || n > 100 {
			s.Errorf("%d requests in half an hour", n)
		}
		s.endsEarly.Store(false)
		s.pass(time.Minute)
		s.has(1)
		s.put("late", "n1")
		s.pass(time.Second)
		s.has(2)
	})
}

// firstEvent returns a stream that ends after the first event of w.
func firstEvent(w watch.Interface) watch.Interface {
	events := make(chan watch.Event)
	early := watch.NewProxyWatcher(events)
	go func() {
		defer close(events)
		defer w.Stop()
		select {
		case event, ok := <-w.ResultChan():
			if !ok {
				return
			}
			select {
			case events <- event:
			case <-early.StopChan():
			}
		case <-early.StopChan():
		}
	}()
	return early
}

// outcomes returns the errors that Outcome received.
func (s *subject) outcomes() []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.seen)
}

func (s *subject) put(name, node string) {
	s.server.Put(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "registry.example/c"}}},
	})
}

func (s *subject) start() {
	ctx, cancel := context.WithCancel(s.Context())
	s.cancel, s.done = cancel, make(chan struct{})
	go func() {
		defer close(s.done)
		s.informer.RunWithContext(ctx)
	}()
	synctest.Wait()
}

// stop ends the informer, which must end at once even while it waits.
func (s *subject) stop() {
	s.Helper()
	begin := time.Now()
	s.cancel()
	<-s.done
	if took := time.Since(begin); took > 0 {
		s.Errorf("the informer ended %v after its context", took)
	}
}

func (s *subject) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// has checks that the informer has n objects.
func (s *subject) has(n int) {
	s.Helper()
	if got := len(s.informer.GetStore().List()); got != n || !s.informer.HasSynced() {
		s.Errorf("%d objects, synced %v; want %d", got, s.informer.HasSynced(), n)
	}
}

func TestDeliversWhatTheSelectorSelects(t *testing.T) {
	bubble(t, func(s *subject) {
		s.start()
		s.has(1)
		s.put("two", "n1")
		s.put("three", "n2")
		synctest.Wait()
		s.has(2)
		for _, err := range s.outcomes() {
			if err != nil {
				s.Errorf("an outcome is %v", err)
			}
		}
	})
}

var errs = map[string]apitest.Fault{
	"410":       {Status: statuserr.Gone()},
	"too large": {Status: tooLarge()},
	"429":       {Status: statuserr.TooManyRequests(1)},
	"503":       {Status: statuserr.Unavailable(0)},
	"refused":   {Err: apitest.ErrConnRefused},
	"reset":     {Err: apitest.ErrConnReset},
	"hang":      {Hang: true},
}

// An hour of each error costs few requests, whatever the reflector does about
// it. Afterwards the informer works within a minute. The end of the context
// ends it at once, also during an outage.
func TestHourOfErrors(t *testing.T) {
	for name, fault := range errs {
		t.Run(name, func(t *testing.T) {
			for _, at := range []string{"from the start", "later"} {
				t.Run(at, func(t *testing.T) {
					bubble(t, func(s *subject) {
						fault.Match = pods
						if at == "later" {
							s.start()
							s.server.BreakWatches(pods)
						}
						repair := s.server.Inject(fault)
						if at != "later" {
							s.start()
						}
						s.server.ResetJournal()
						before := len(s.outcomes())
						s.pass(time.Hour)
						// These are requests of this package; client-go repeats
						// a throttled or reset request ten times, a second
						// apart.
						if n := len(s.outcomes()) - before; n > 400 {
							s.Errorf("%d tries in an hour", n)
						}
						if n := len(s.server.Requests(pods)); n > 3600 {
							s.Errorf("%d requests in an hour", n)
						}
						repair()
						s.pass(2 * time.Minute)
						s.has(1)
						s.server.Inject(fault)
						s.server.BreakWatches(pods)
						s.pass(10*time.Minute + 300*time.Millisecond)
					})
				})
			}
		})
	}
}

// The end of the context also ends an informer at once that never synced. The
// reflector alone keeps sleeping after some errors.
func TestEndBeforeItWorked(t *testing.T) {
	for name, fault := range errs {
		for i := range 8 {
			t.Run(fmt.Sprint(name, "/", i), func(t *testing.T) {
				bubble(t, func(s *subject) {
					fault.Match = pods
					s.server.Inject(fault)
					s.start()
					s.pass(time.Duration(i*i) * 3700 * time.Millisecond)
				})
			})
		}
	}
}

func tooLarge() *apierrors.StatusError {
	err := apierrors.NewTimeoutError("too large resource version", 1)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge}}
	return err
}

// A stream that delivers nothing, not even its end, is closed soon after the
// server should have ended it.
func TestDeadStream(t *testing.T) {
	bubble(t, func(s *subject) {
		s.start()
		resume := s.server.StallWatches(pods)
		s.server.Inject(apitest.Fault{Match: pods, Times: 1, Hang: true}) // the next watch gets no answer
		s.put("two", "n1")
		s.server.ResetJournal()
		s.pass(10*time.Minute + slack + answerTimeout + time.Minute)
		if n := len(s.server.Requests(pods)); n < 2 {
			s.Errorf("%d requests: the dead stream is still trusted", n)
		}
		resume()
		s.pass(time.Minute)
		s.has(2)
	})
}

// TestARestoredServer: a real API server takes a version that is newer than its own
// for the start of a watch, and then delivers nothing until it has reached that
// version.
func TestARestoredServer(t *testing.T) {
	for name, test := range map[string]struct {
		drop   bool
		refuse time.Duration
	}{
		"that keeps its address":                              {},
		"that refuses connections first":                      {drop: true, refuse: time.Minute},
		"that refuses connections when a stream ends in time": {refuse: 11 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(s *subject) {
				s.start()
				restore := s.server.Backup()
				for i := range 10 {
					s.put(fmt.Sprint("lost", i), "n1")
				}
				s.pass(10 * time.Second)
				s.has(11)
				if test.refuse > 0 {
					over := s.server.Inject(apitest.Fault{Match: pods, Err: apitest.ErrConnRefused})
					defer over()
					if test.drop {
						s.server.DropWatches(pods)
					}
					s.pass(test.refuse)
					restore()
					over()
				} else {
					restore()
				}
				s.pass(2 * time.Minute) // a reflector waits for up to one
				s.has(1)
				s.put("two", "n1")
				s.pass(time.Second)
				s.has(2)
			})
		})
	}
}

// TestARestoreBetweenTwoStreams: no stream breaks, and the next one begins at a version that the
// server has not reached. That it brings nothing is all that can be seen.
func TestARestoreBetweenTwoStreams(t *testing.T) {
	bubble(t, func(s *subject) {
		s.start()
		restore := s.server.Backup()
		s.put("lost", "n1")
		s.pass(10 * time.Second)
		s.beforeWatch.Store(&restore)
		s.pass(10 * time.Minute)
		if s.beforeWatch.Load() != nil {
			s.Fatal("no stream began in ten minutes")
		}
		s.put("two", "n1")
		s.pass(unproven)
		s.has(2)
		if _, ok, _ := s.informer.GetStore().GetByKey("default/lost"); ok {
			s.Error("the informer has an object of before the restore")
		}
	})
}

// TestAStreamThatEndsInTimeNeedsNoList: the server ends each stream after the
// requested time. Only a stream that broke is followed by a list.
func TestAStreamThatEndsInTimeNeedsNoList(t *testing.T) {
	bubble(t, func(s *subject) {
		s.start()
		s.server.ResetJournal()
		s.pass(time.Hour)
		lists := apitest.Match{Func: func(r apitest.Request) bool {
			return r.Verb == "list" || strings.Contains(r.Query, "sendInitialEvents=true")
		}}
		if all, n := len(s.server.Requests(pods)), len(s.server.Requests(lists)); all < 6 || n > 0 {
			s.Errorf("%d lists among %d requests in an hour without faults", n, all)
		}
		s.server.BreakWatches(pods) // perhaps in the last second of a stream, which needs no list
		s.pass(2 * time.Minute)     // streams take five to ten minutes
		s.server.ResetJournal()
		s.server.BreakWatches(pods)
		s.pass(2 * time.Minute)
		if n := len(s.server.Requests(lists)); n != 1 {
			s.Errorf("%d lists after a stream that broke", n)
		}
	})
}

// The end of the context is not reported to Outcome.
func TestEndIsNoOutcome(t *testing.T) {
	bubble(t, func(s *subject) {
		s.server.Inject(apitest.Fault{Match: pods, Hang: true})
		s.start()
		s.pass(time.Second)
		s.stop()
		if len(s.outcomes()) > 0 {
			s.Errorf("outcomes %v", s.outcomes())
		}
	})
}

// The delay that Outcome returns is observed.
func TestOutcomePaces(t *testing.T) {
	bubble(t, func(s *subject) {
		s.wait = 10 * time.Minute
		s.server.Inject(apitest.Fault{Match: pods, Status: statuserr.InternalError("broken")})
		s.start()
		s.pass(time.Hour)
		if n := len(s.outcomes()); n > 7 {
			s.Errorf("%d requests in an hour, ten minutes apart", n)
		}
	})
}

func TestBounded(t *testing.T) {
	hang := func(ctx context.Context, _ metav1.ListOptions) (watch.Interface, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	fake := func(opened *context.Context) func(context.Context, metav1.ListOptions) (watch.Interface, error) {
		return func(ctx context.Context, _ metav1.ListOptions) (watch.Interface, error) {
			*opened = ctx
			return watch.NewFake(), nil
		}
	}
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		_, err := Bounded(t.Context(), answerTimeout, metav1.ListOptions{}, hang)
		if took := time.Since(begin); !errors.Is(err, context.DeadlineExceeded) || took != answerTimeout {
			t.Errorf("no answer: %v after %v", err, took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := Bounded(ctx, answerTimeout, metav1.ListOptions{}, hang); !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != answerTimeout+time.Second {
			t.Errorf("the context's own end: %v", err)
		}
		var opened context.Context
		s, err := Bounded(t.Context(), answerTimeout, metav1.ListOptions{TimeoutSeconds: new(int64(300))}, fake(&opened))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(300*time.Second + slack - time.Second)
		synctest.Wait()
		if opened.Err() != nil {
			t.Error("the stream was ended before its time")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if opened.Err() == nil {
			t.Error("the stream never ends")
		}
		s.Stop()
		s, err = Bounded(t.Context(), answerTimeout, metav1.ListOptions{}, fake(&opened))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		if opened.Err() != nil {
			t.Error("a stream without a time was ended")
		}
		s.Stop()
		if opened.Err() == nil {
			t.Error("Stop left the request open")
		}
	})
}
