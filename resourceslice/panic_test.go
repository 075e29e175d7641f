// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package resourceslice_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/callback/callbacktest"
	"github.com/kubewright/kubewright/internal/statuserr"
	"github.com/kubewright/kubewright/resourceslice"
)

// A panic in a callback changes nothing if the callback returns nothing, and delays the
// publication until it ends if it is Owner.
func TestAPanicInACallbackIsContained(t *testing.T) {
	var broken atomic.Bool
	for name, change := range map[string]func(*resourceslice.Config){
		"Hooks.APICall": func(cfg *resourceslice.Config) {
			cfg.Hooks.APICall = func(resourceslice.APICall) { panic("boom") }
		},
		"Hooks.Published": func(cfg *resourceslice.Config) {
			hook := cfg.Hooks.Published
			cfg.Hooks.Published = func(p resourceslice.Published) {
				hook(p)
				panic("boom")
			}
		},
		"ErrorHandler": func(cfg *resourceslice.Config) {
			handler := cfg.ErrorHandler
			cfg.ErrorHandler = func(ctx context.Context, err error, msg string) {
				handler(ctx, err, msg)
				panic("boom")
			}
		},
		"Owner": func(cfg *resourceslice.Config) {
			owner := cfg.Owner
			broken.Store(true)
			cfg.Owner = func(ctx context.Context) (metav1.OwnerReference, error) {
				if broken.Load() {
					panic("boom")
				}
				return owner(ctx)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.start(change)
				r.set(resourceslice.Pool{Devices: devices(3)})
				r.settle(2 * time.Minute)
				if n := len(r.devices()); name == "Owner" && n != 0 {
					t.Errorf("%d devices are published without an owner", n)
				}
				broken.Store(false)
				r.settle(2 * time.Minute)
				r.wait()
				restore := r.s.Inject(apitest.Fault{Match: apitest.Match{Verb: "update"}, Status: statuserr.InternalError("broken")})
				r.set(resourceslice.Pool{Devices: devices(4)})
				r.settle(2 * time.Minute)
				restore()
				r.settle(2 * time.Minute)
				r.wait()
				if n := len(r.devices()); n != 4 || len(r.published) != 2 {
					t.Errorf("%d devices, published %v", n, r.published)
				}
				if err := r.c.Check(nil); err != nil {
					t.Errorf("Check = %v", err)
				}
				if len(r.reported()) == 0 {
					t.Error("the scenario has no error")
				}
				if name != "ErrorHandler" {
					callbacktest.WantPanic(r, r.reported(), name)
				}
			})
		})
	}
}

// Without a pool Owner is called to remove those of an earlier process.
func TestAPanicInOwnerIsReportedWithoutAPool(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.publish(resourceslice.Pool{Devices: devices(3)})
		r.halt()
		var broken atomic.Bool
		broken.Store(true)
		r.start(func(cfg *resourceslice.Config) {
			owner := cfg.Owner
			cfg.Owner = func(ctx context.Context) (metav1.OwnerReference, error) {
				if broken.Load() {
					panic("boom")
				}
				return owner(ctx)
			}
		})
		r.consumer.remove()
		if err := r.c.SetAll(driver, nil); err != nil {
			t.Fatal(err)
		}
		r.settle(10 * time.Minute)
		callbacktest.WantPanic(r, r.reported(), "Owner")
		if n := len(r.reported()); n != 1 {
			t.Errorf("reported %d errors, want one: %v", n, r.reported())
		}
		broken.Store(false)
		r.settle(time.Minute)
		if n := len(r.slices()); n != 0 {
			t.Errorf("%d slices are left", n)
		}
	})
}
