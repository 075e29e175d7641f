// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/resourceslice"
)

// Each of these is a mistake of the kubelet's former controller for node
// resources. Its S9, goroutines that are left behind, fails every test here:
// the bubble ends with it.

// S1: at the start the slices of all drivers are deleted, since none has
// registered yet. S11: a resync every ten minutes compares everything.
func TestS1S11StartAndAnHour(t *testing.T) {
	bubble(t, func(r *rig) {
		r.there(live("s1", 1, 1, device(1, "a")))
		r.start()
		r.settle(time.Minute)
		r.expect("S1: before the driver has spoken", 0, 0, 0)
		r.publish(pools(device(1, "a")))
		r.s.ResetJournal()
		r.settle(time.Hour)
		if n := r.s.Count(apitest.Match{Func: func(q apitest.Request) bool { return q.Verb != "watch" }}); n != 0 {
			t.Errorf("S11: %d requests beside watches in an hour", n)
		}
	})
}

// stream is a driver's stream of messages.
type stream struct {
	messages chan any // map[string]resourceslice.Pool or error
	closed   int
}

func (s *stream) Next(ctx context.Context) (map[string]resourceslice.Pool, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case m := <-s.messages:
		if err, ok := m.(error); ok {
			return nil, err
		}
		return m.(map[string]resourceslice.Pool), nil
	}
}

func (s *stream) Close() error {
	s.closed++
	return nil
}

func (s *stream) send(devices ...resourcev1.Device) {
	s.messages <- map[string]resourceslice.Pool{node: pools(devices...)}
}

// follow runs Follow for the rig's driver.
func (r *rig) follow(opts resourceslice.FollowOptions) (s *stream, done chan error) {
	s, done = &stream{messages: make(chan any)}, make(chan error, 1)
	ctx, cancel := context.WithCancel(r.Context())
	r.Cleanup(cancel)
	opts.ErrorHandler = func(_ context.Context, err error, _ string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.errs = append(r.errs, err)
	}
	go func() {
		done <- resourceslice.Follow(ctx, r.c, driver, func(context.Context) (resourceslice.Stream, error) { return s, nil }, opts)
	}()
	return s, done
}

// S2: a driver that registers anew loses all its slices until its first
// message. S10: the end of a stream, or a panic, ends it without a word, and
// every message is written at once.
func TestS2S10Streams(t *testing.T) {
	bubble(t, func(r *rig) {
		r.there(live("s1", 1, 1, device(1, "a")))
		r.start()
		s, done := r.follow(resourceslice.FollowOptions{})
		r.settle(time.Minute)
		r.expect("before the first message", 0, 0, 0)
		s.send(device(1, "a"))
		r.settle(time.Minute)
		r.expect("a message with what there is", 0, 0, 0)
		s.messages <- errors.New("broken pipe")
		r.settle(time.Hour)
		r.expect("while the stream is broken", 0, 0, 0)
		if n := len(r.reported()); n != 1 || s.closed != 1 {
			t.Errorf("reported %v, closed %d times", r.reported(), s.closed)
		}
		s.send(device(1, "b"))
		r.settle(time.Second)
		r.expect("when it works again", 0, 1, 0)
		for i := range 100 {
			s.send(device(1, fmt.Sprint(i)))
			time.Sleep(20 * time.Millisecond)
		}
		r.settle(2 * time.Second)
		r.expect("a hundred messages in two seconds", 0, 3, 0)
		s.messages <- io.EOF
		if err := <-done; err != nil {
			t.Errorf("Follow = %v", err)
		}
		r.settle(time.Hour)
		r.expect("after the end of the stream", 0, 0, 0)
	})
}

func TestFollowStale(t *testing.T) {
	for _, tc := range []struct {
		name                      string
		action                    resourceslice.StalePolicy
		creates, updates, deletes int
	}{
		{"keep", resourceslice.StaleKeep, 0, 0, 0},
		{"taint", resourceslice.StaleTaint, 0, 1, 0},
		{"remove", resourceslice.StaleRemove, 0, 0, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.start()
				s, done := r.follow(resourceslice.FollowOptions{OnStale: tc.action})
				s.send(device(1, "a"))
				r.settle(time.Minute)
				r.s.ResetJournal()
				r.consumer.remove()
				s.messages <- errors.New("gone")
				more, end := make(chan struct{}), make(chan struct{})
				go func() {
					for {
						select {
						case s.messages <- errors.New("still gone"):
						case <-end:
							s.messages <- io.EOF
							close(more)
							return
						}
					}
				}()
				r.settle(29 * time.Second)
				r.expect("after 29 s", 0, 0, 0)
				r.settle(31 * time.Second)
				r.expect("after a minute", tc.creates, tc.updates, tc.deletes)
				close(end)
				<-done
				<-more
			})
		})
	}
}

func TestFollowUnsupported(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		s, done := r.follow(resourceslice.FollowOptions{})
		s.send(device(1, "a"))
		r.settle(time.Second)
		r.consumer.remove()
		s.messages <- fmt.Errorf("list devices: %w", errors.ErrUnsupported)
		if err := <-done; err != nil {
			t.Errorf("Follow = %v", err)
		}
		r.settle(time.Second)
		r.expect("a driver without devices", 1, 0, 1)
	})
}

// S3: two equal models of a driver make one more slice with every event. S4: a
// slice that is there twice stays. S7: obsolete slices are used again in any
// order.
func TestS3S4S7EqualSlices(t *testing.T) {
	bubble(t, func(r *rig) {
		r.there(live("s1", 1, 3, device(1, "a")), live("s2", 1, 3, device(1, "a")), live("s3", 1, 3, device(2, "a")))
		r.consumer.tolerate(true)
		r.start()
		for _, name := range []string{"p1", "p2"} {
			if err := r.c.Set(resourceslice.PoolID{Driver: driver, Name: name}, pools(device(1, "a"))); err != nil {
				t.Fatal(err)
			}
		}
		r.publish(pools(device(1, "a"), device(2, "a")))
		r.expect("S3: one slice for each of two equal pools; S4: one of three goes empty; S7: the others stay", 2, 1, 0)
		r.settle(time.Hour)
		r.expect("an hour later", 0, 0, 0)
	})
}

// S5: a message between a create and its event makes everything twice.
func TestS5MessageBeforeTheEvent(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.settle(time.Second)
		defer r.s.LagWatches(apitest.Match{User: r.user.Name}, time.Minute)()
		r.publish(pools(device(1, "a")))
		r.publish(pools(device(1, "b")))
		r.publish(pools(device(1, "c"), device(2, "a")))
		r.expect("three messages", 1, 2, 0)
		r.settle(time.Hour)
		r.expect("an hour later", 0, 0, 0)
	})
}

// S6: the first error ends the sync, and is never told.
func TestS6OneErrorDoesNotBlockOthers(t *testing.T) {
	bubble(t, func(r *rig) {
		r.there(live("old", 1, 1, device(9, "a")))
		r.s.Inject(apitest.Fault{Match: apitest.Match{Verb: "create", Resource: "resourceslices", Func: func(q apitest.Request) bool {
			obj, err := q.Object()
			s, ok := obj.(*resourcev1.ResourceSlice)
			return err == nil && ok && s.Spec.Pool.Name == "bad"
		}}, Status: apitest.StatusError(422, metav1.StatusReasonInvalid, "no")})
		r.start()
		r.consumer.remove()
		for _, name := range []string{"bad", "good"} {
			if err := r.c.Set(resourceslice.PoolID{Driver: driver, Name: name}, pools(device(1, "a"))); err != nil {
				t.Fatal(err)
			}
		}
		r.c.Remove(pool)
		r.settle(time.Minute)
		// The pool that is refused as it is becomes one without devices, which
		// is refused as well.
		r.expect("one bad, one good, one to remove", 3, 0, 1)
		if _, n := has[*resourceslice.InvalidError](r); n == 0 {
			t.Error("nothing was reported")
		}
	})
}

// S8: slices have no generation and no count. S12: the owner of slices that
// are there is not corrected; see TestU17LabelsAndOwners.
func TestS8GenerationAndCount(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.publish(resourceslice.Pool{Devices: devices(300)})
		for _, s := range r.slices() {
			if s.Spec.Pool.Generation != 1 || s.Spec.Pool.ResourceSliceCount != 5 {
				t.Errorf("%s: %+v", s.Name, s.Spec.Pool)
			}
		}
	})
}
