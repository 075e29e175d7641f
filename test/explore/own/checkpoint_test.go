// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package own

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/apitest/explore"
	"github.com/kubewright/kubewright/podsync"
	"github.com/kubewright/kubewright/podsync/podstatus"
	"github.com/kubewright/kubewright/podsync/podsynctest"
)

// away is how long the API server can't be reached after a reboot.
const away = 3 * time.Minute

// computer is a machine that can lose its power. Its disk is the directory of the
// process.
type computer struct {
	*podsynctest.Backend
	mu       sync.Mutex
	rebooted time.Time
}

// reboot loses all pods. The machine can't reach the API server until some time later.
func (m *computer) reboot(s *apitest.Server) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rebooted = time.Now()
	for _, state := range m.Held() {
		m.Lose(state.Ref.UID)
	}
	s.Inject(apitest.Fault{Match: apitest.Match{User: apitest.NodeUser("n1").Name}, Err: apitest.ErrConnRefused, For: away})
}

// offline reports whether pods must run although the API server is away.
func (m *computer) offline() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	since := time.Since(m.rebooted)
	return !m.rebooted.IsZero() && since > podsync.DefaultOfflineAfter+time.Minute && since < away
}

// TestCheckpoint explores podsync with a checkpoint on a machine that loses its power at each
// write, call and step, while the API server is away for a while after it.
func TestCheckpoint(t *testing.T) {
	cfg := config(testing.Short())
	var computers sync.Map // of each World
	cfg.Faults = []explore.Fault{{Name: "reboot without an API server", Do: func(w *explore.World) {
		m, _ := computers.Load(w)
		w.Crash("node")
		m.(*computer).reboot(w.Server)
	}}}
	for _, f := range explore.Faults() {
		if f.Name != "takeover" && f.Name != "restore" { // another host has other files, and a backup brings pods back
			cfg.Faults = append(cfg.Faults, f)
		}
	}
	// Pods that ran before a reboot have restarted, and one that never restarts has failed.
	cfg.Ignore = []string{"Pod.status.containerStatuses", "Pod.status.phase", "Pod.status.reason", "Pod.status.message", "Pod.status.conditions", "Pod.status.podIP", "Pod.status.podIPs"}
	explore.Run(t, cfg, func(w *explore.World) explore.Scenario {
		m := &computer{Backend: podsynctest.NewBackend(podsynctest.Options{StopTime: 2 * time.Second})}
		computers.Store(w, m)
		get := func(name string) *corev1.Pod { return apitest.Get[*corev1.Pod](w.Server, "default", name) }
		phase := func(name string, phase corev1.PodPhase) func() bool {
			return func() bool { p := get(name); return p != nil && p.Status.Phase == phase }
		}
		web, mail, job := pod("web"), pod("mail"), pod("job")
		web.Spec.RestartPolicy, mail.Spec.RestartPolicy = corev1.RestartPolicyAlways, corev1.RestartPolicyAlways
		return explore.Scenario{
			Programs: []explore.Program{{Name: "node", User: apitest.NodeUser("n1"), Run: func(ctx context.Context, p *explore.Process) error {
				dir, err := p.Dir()
				if err != nil {
					return err
				}
				provider := m.Connect()
				p.OnCrash(provider.Crash)
				c, err := podsync.New(podsync.Config{
					Client: kubernetes.NewForConfigOrDie(p.Config).CoreV1(), NodeName: "n1", Provider: provider,
					Checkpoint: podsync.CheckpointDir(filepath.Join(dir, "pods")),
				})
				if err != nil {
					return err
				}
				return c.Run(ctx)
			}}},
			Steps: []explore.Step{
				{Name: "create pods", Do: put(w, web, mail, job), Until: all(phase("web", corev1.PodRunning), phase("mail", corev1.PodRunning), func() bool { p := get("job"); return p != nil && p.Status.Phase != corev1.PodPending })},
				{Name: "job ends", Do: func() error { exit(w, m.Backend, "job"); return nil }, Until: func() bool { p := get("job"); return p != nil && podstatus.IsTerminal(p.Status.Phase) }},
				{Name: "delete mail", Do: deletePod(w, "mail"), Until: func() bool { return get("mail") == nil }},
			},
			Always: []explore.Invariant{
				{Name: "podsync keeps its contract", Holds: func() error {
					if v := m.Violations(); len(v) > 0 {
						return fmt.Errorf("%v", v)
					}
					return nil
				}},
				{Name: "pods run while the API server is away", Holds: func() error {
					if p := get("web"); m.offline() && p != nil && p.DeletionTimestamp == nil && p.Status.Phase == corev1.PodRunning && !m.Running(p.UID) {
						return errors.New("web does not run")
					}
					return nil
				}},
			},
			Finally: func() error {
				for _, p := range apitest.List[*corev1.Pod](w.Server, "default") {
					if m.Running(p.UID) != (p.Status.Phase == corev1.PodRunning) {
						return fmt.Errorf("pod %s is %s, running: %v", p.Name, p.Status.Phase, m.Running(p.UID))
					}
				}
				return nil
			},
		}
	})
}
