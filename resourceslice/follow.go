// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/klog/v2"

	"github.com/kubewright/kubewright/internal/backoff"
	"github.com/kubewright/kubewright/internal/enum"
	"github.com/kubewright/kubewright/internal/lifecycle"
	"github.com/kubewright/kubewright/internal/report"
)

// DefaultStaleAfter is how long a driver may be gone before FollowOptions.OnStale
// applies: as long as the kubelet waits before it removes the slices of a
// driver that has unregistered.
const DefaultStaleAfter = 30 * time.Second

// healthyAfter is how long a stream must have worked before an error of it
// counts as the first one.
const healthyAfter = time.Minute

var reopenBackoff = backoff.Policy{Base: time.Second, Cap: time.Minute}

// Stream is a source of whole states of a driver's pools.
type Stream interface {
	// Next returns the pools as they are, by name, when they have changed and
	// once at the beginning; a pool that is missing is gone. io.EOF says that
	// nothing will change any more, errors.ErrUnsupported that the driver has
	// no devices, and any other error that the stream has to be opened again.
	// It returns soon after ctx is done.
	Next(ctx context.Context) (map[string]Pool, error)
}

// A StalePolicy says what happens to the pools of a driver that is gone.
type StalePolicy int

const (
	// StaleKeep leaves the pools as they are.
	StaleKeep StalePolicy = iota
	// StaleTaint taints all devices with FollowOptions.StaleTaint, so that no
	// new Pods get them.
	StaleTaint
	// StaleRemove removes the pools.
	StaleRemove
)

// String returns the name of the policy.
func (p StalePolicy) String() string {
	return enum.Name(p, "Keep", "Taint", "Remove")
}

// FollowOptions are the optional parameters of Follow.
type FollowOptions struct {
	// StaleAfter is how long the stream may be broken before OnStale applies.
	// Default: DefaultStaleAfter.
	StaleAfter time.Duration
	// OnStale says what happens then. Default: StaleKeep.
	OnStale StalePolicy
	// StaleTaint is the taint of the policy StaleTaint. Default: the key is
	// <driver>/unreachable in lower case, the effect NoSchedule.
	StaleTaint resourcev1.DeviceTaint
	// ErrorHandler is told of broken streams, once until the next message, and
	// of pools that Set refuses. It is called synchronously and must not block.
	// Default: the logger of Follow's context.
	ErrorHandler func(ctx context.Context, err error, msg string)
}

// Follow hands what a driver streams to a Sink, usually a Controller, until ctx
// is done or the stream ends for good, and then returns nil. It opens the
// stream again whenever it breaks; a Stream that is an io.Closer is closed
// before. Nothing changes before the first message: a driver that registers
// anew finds its slices as they were.
func Follow(ctx context.Context, sink Sink, driver string, open func(context.Context) (Stream, error), opts FollowOptions) error {
	if sink == nil || open == nil || driver == "" {
		return errors.New("resourceslice: invalid config: Follow needs a sink, a driver and a function that opens its stream")
	}
	problems := lifecycle.DefaultDuration("StaleAfter", &opts.StaleAfter, DefaultStaleAfter, time.Millisecond)
	problems = append(problems, enum.Check("OnStale", opts.OnStale, StaleRemove)...)
	if opts.StaleTaint.Key == "" {
		opts.StaleTaint.Key = strings.ToLower(driver) + "/unreachable"
	}
	if opts.StaleTaint.Effect == "" {
		opts.StaleTaint.Effect = resourcev1.DeviceTaintEffectNoSchedule
	}
	if opts.OnStale == StaleTaint {
		problems = append(problems, validateTaint(&opts.StaleTaint, field.NewPath("StaleTaint"))...)
	}
	if err := lifecycle.InvalidConfig("resourceslice", problems); err != nil {
		return err
	}
	f := &follower{sink: sink, driver: driver, open: open, opts: opts}
	failures := 0
	for ctx.Err() == nil {
		began := time.Now()
		err := f.once(ctx)
		switch {
		case ctx.Err() != nil || errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, errors.ErrUnsupported):
			f.apply(ctx, nil)
			return nil
		}
		if time.Since(began) >= healthyAfter {
			failures = 0
		}
		failures++
		if !f.broken {
			f.broken = true
			f.since = time.Now()
			f.report(ctx, fmt.Errorf("resourceslice: stream of driver %s: %w", driver, err), "The stream of a driver broke")
		}
		f.pause(ctx, reopenBackoff.Delay(failures))
	}
	return nil
}

// follower is one Follow.
type follower struct {
	sink   Sink
	driver string
	open   func(context.Context) (Stream, error)
	opts   FollowOptions

	last   map[string]Pool // the last message
	broken bool            // no message since the stream broke
	since  time.Time
	stale  bool // OnStale was applied
}

// once follows one stream until it breaks or ends.
func (f *follower) once(ctx context.Context) (err error) {
	var stream Stream
	f.do(ctx, func() { stream, err = f.open(ctx) })
	if err != nil {
		return err
	}
	if closer, ok := stream.(io.Closer); ok {
		defer func() { err = errors.Join(err, closer.Close()) }()
	}
	for {
		var pools map[string]Pool
		f.do(ctx, func() { pools, err = stream.Next(ctx) })
		if err != nil {
			return err
		}
		if f.broken {
			klog.FromContext(ctx).V(2).Info("The stream of a driver works again", "driver", f.driver, "outage", time.Since(f.since))
		}
		f.broken, f.stale = false, false
		f.apply(ctx, pools)
	}
}

// apply makes the driver's pools what a message says.
func (f *follower) apply(ctx context.Context, pools map[string]Pool) {
	for name, pool := range pools {
		f.set(ctx, name, pool)
	}
	for name := range f.last {
		if _, ok := pools[name]; !ok {
			f.sink.Remove(PoolID{f.driver, name})
		}
	}
	f.last = maps.Clone(pools)
}

func (f *follower) set(ctx context.Context, name string, pool Pool) {
	if err := f.sink.Set(PoolID{f.driver, name}, pool); err != nil {
		f.report(ctx, err, "A driver sent a pool that can't be published")
	}
}

// do waits for a call of the driver's, which may take as long as it likes.
func (f *follower) do(ctx context.Context, call func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		call()
	}()
	f.await(ctx, done)
}

// pause waits before the stream is opened again.
func (f *follower) pause(ctx context.Context, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	f.await(ctx, ctx.Done())
}

// await waits for done. If the driver is gone for too long meanwhile, its pools
// get what OnStale says.
func (f *follower) await(ctx context.Context, done <-chan struct{}) {
	if !f.broken || f.stale || f.opts.OnStale == StaleKeep {
		<-done
		return
	}
	stale := time.NewTimer(time.Until(f.since.Add(f.opts.StaleAfter)))
	defer stale.Stop()
	select {
	case <-done:
	case <-stale.C:
		f.expire(ctx)
		<-done
	}
}

// expire applies OnStale.
func (f *follower) expire(ctx context.Context) {
	f.stale = true
	klog.FromContext(ctx).Info("A driver is gone", "driver", f.driver, "since", f.since)
	for name, pool := range f.last {
		if f.opts.OnStale == StaleRemove {
			f.sink.Remove(PoolID{f.driver, name})
			continue
		}
		pool.Devices = slices.Clone(pool.Devices)
		for i := range pool.Devices {
			taints := pool.Devices[i].Taints
			pool.Devices[i].Taints = append(taints[:len(taints):len(taints)], f.opts.StaleTaint)
		}
		f.set(ctx, name, pool)
	}
}

func (f *follower) report(ctx context.Context, err error, msg string) {
	report.Tell(ctx, f.opts.ErrorHandler, err, msg, "driver", f.driver)
}
