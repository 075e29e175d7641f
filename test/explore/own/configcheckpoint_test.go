// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package own

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kubewright/kubewright/apitest/explore"
	"github.com/kubewright/kubewright/configcheckpoint"
	configkube "github.com/kubewright/kubewright/configcheckpoint/kube"
)

// TestConfigCheckpoint explores an agent that gets a good configuration, a bad one and
// another good one. Its files are copied at a crash.
func TestConfigCheckpoint(t *testing.T) {
	cfg := config(testing.Short())
	// The agent of another host has other files.
	cfg.Faults = slices.DeleteFunc(explore.Faults(), func(f explore.Fault) bool { return f.Name == "takeover" })
	explore.Run(t, cfg, func(w *explore.World) explore.Scenario {
		write := func(value string) func() error {
			return func() error {
				w.Server.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "agent"}, Data: map[string]string{"config": value}})
				return nil
			}
		}
		var mu sync.Mutex
		running, proven := "", map[string]bool{}
		var status configcheckpoint.Status
		var fell string
		is := func(value string, phase configcheckpoint.Phase) func() bool {
			return func() bool {
				mu.Lock()
				defer mu.Unlock()
				return running == value && status.Phase == phase
			}
		}
		// once boots, and runs the agent until it must restart.
		once := func(ctx context.Context, p *explore.Process) error {
			dir, err := p.Dir()
			if err != nil {
				return err
			}
			source, err := configkube.ConfigMap(kubernetes.NewForConfigOrDie(p.Config).CoreV1(), "default", "agent", "config")
			if err != nil {
				return err
			}
			var active configcheckpoint.Active[string]
			c, err := configcheckpoint.New(configcheckpoint.Config[string]{
				Dir: filepath.Join(dir, "store"), Source: source,
				Codec: configcheckpoint.Codec[string]{Decode: func(b []byte) (string, error) { return string(b), nil }, Default: func() (string, error) { return "default", nil }},
				Trial: configcheckpoint.Trial{Soak: time.Minute, Every: 5 * time.Second, Grace: 20 * time.Second, Health: func(context.Context) error {
					if active.Config == "bad" {
						return errors.New("unhealthy")
					}
					return nil
				}},
				Hooks: configcheckpoint.Hooks{
					StatusChanged: func(s configcheckpoint.Status) {
						_ = p.Call("status", func() {
							mu.Lock()
							defer mu.Unlock()
							status = s
						})
					},
					Promoted: func(configcheckpoint.Promoted) {
						_ = p.Call("promoted "+active.Config, func() {
							mu.Lock()
							defer mu.Unlock()
							proven[active.Config] = true
						})
					},
				},
			})
			if err != nil {
				return err
			}
			active, err = c.Boot(ctx)
			if err != nil {
				return err
			}
			if err := p.Call("boot "+active.Config, func() {
				mu.Lock()
				defer mu.Unlock()
				running, status = active.Config, c.Status()
				if active.Config == "default" && len(proven) > 0 {
					fell = "the built-in default runs, and there is a proven configuration"
				}
			}); err != nil {
				return err
			}
			err = c.Run(ctx)
			return errors.Join(err, c.Close(nil))
		}
		return explore.Scenario{
			Programs: []explore.Program{{Name: "agent", Run: func(ctx context.Context, p *explore.Process) error {
				for {
					if err := once(ctx, p); !errors.Is(err, configcheckpoint.ErrRestart) || ctx.Err() != nil {
						if ctx.Err() != nil {
							return nil
						}
						return err
					}
				}
			}}},
			Steps: []explore.Step{
				{Name: "a first configuration", Do: write("good 1"), Until: is("good 1", configcheckpoint.PhaseGood)},
				{Name: "a bad one", Do: write("bad"), Until: is("good 1", configcheckpoint.PhaseRolledBack)},
				{Name: "a second good one", Do: write("good 2"), Until: is("good 2", configcheckpoint.PhaseGood)},
			},
			Always: []explore.Invariant{{Name: "a proven configuration stays", Holds: func() error {
				mu.Lock()
				defer mu.Unlock()
				switch {
				case proven["bad"]:
					return errors.New("the bad configuration is proven")
				case fell != "":
					return errors.New(fell)
				}
				return nil
			}}},
			Finally: func() error {
				if !is("good 2", configcheckpoint.PhaseGood)() {
					mu.Lock()
					defer mu.Unlock()
					return fmt.Errorf("%q runs, %v", running, status.Phase)
				}
				return nil
			},
		}
	})
}
