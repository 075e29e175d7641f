// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"net"
	"slices"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// hangs is the timeout of a request to a paused server.
const hangs = 300 * time.Millisecond

func TestFaults(t *testing.T) {
	t.Parallel()
	c := Start(t, Options{})
	cfg := c.AdminConfig()
	client := newClient(t, cfg)
	list := func(ctx context.Context) error {
		_, err := client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
		return err
	}
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kept"}, Data: map[string]string{"a": "b"}}
	stored, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), cm, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}

	t.Run("pause", func(t *testing.T) {
		for _, component := range []string{APIServer, Etcd} {
			c.Pause(t, component)
			assertState(t, c, component, "paused")
			ctx, cancel := context.WithTimeout(t.Context(), hangs)
			err := list(ctx) // a list without a resourceVersion must be current, so it reads from etcd
			cancel()
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s is paused and the request ended with %v", component, err)
			}
			c.Resume(t, component)
			assertState(t, c, component, "running")
			if err := list(t.Context()); err != nil {
				t.Errorf("%s has been resumed: %v", component, err)
			}
		}
	})

	t.Run("kill and restart the API server", func(t *testing.T) {
		address := cfg.Host[len("https://"):]
		c.Kill(t, APIServer)
		assertState(t, c, APIServer, "stopped")
		if conn, err := net.Dial("tcp", address); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("dialling a dead server: %v, want the connection refused", err)
			if err == nil {
				conn.Close()
			}
		}
		// No other process can take the port in the meantime.
		if l, err := net.Listen("tcp", address); err == nil {
			l.Close()
			t.Error("the server's port was free for others")
		}
		c.Restart(t, APIServer)
		assertState(t, c, APIServer, "running")
		assertKept(t, c, stored)
	})

	t.Run("restart etcd", func(t *testing.T) {
		c.Restart(t, Etcd)
		c.WaitReady(t)
		assertKept(t, c, stored)
	})

	t.Run("terminate the scheduler", func(t *testing.T) {
		c.Terminate(t, Scheduler)
		assertState(t, c, Scheduler, "stopped")
		c.Restart(t, Scheduler)
		assertState(t, c, Scheduler, "running")
	})

	t.Run("restart everything", func(t *testing.T) {
		c.Restart(t, All)
		for _, component := range []string{Etcd, APIServer, ControllerManager, Scheduler} {
			assertState(t, c, component, "running")
		}
		assertKept(t, c, stored)
	})
}

// TestExtraInstances: two schedulers run in addition to a single process, and one can be killed without the other.
func TestExtraInstances(t *testing.T) {
	t.Parallel()
	needsClusters(t)
	names := []string{"kube-scheduler-a", "kube-scheduler-b"}
	c := Start(t, Options{
		SingleProcess: true, Without: bare.Without, Extra: names,
		ExtraArgs: map[string][]string{Scheduler: {"--leader-elect=true"}},
	})
	instances := func() map[string]Component {
		m := map[string]Component{}
		for _, component := range c.Components(t) {
			m[component.Name] = component
		}
		return m
	}
	for _, name := range names {
		if got := instances()[name].State; got != "stopped" {
			t.Errorf("%s is %q before anybody started it", name, got)
		}
		c.Restart(t, name)
	}
	c.Kill(t, names[0])
	got := instances()
	a, b := got[names[0]], got[names[1]]
	if a.State != "stopped" || b.State != "running" || b.PID == got[All].PID || a.Port == b.Port || a.Log == b.Log {
		t.Errorf("after %s was killed: %+v, %+v", names[0], a, b)
	}
	c.Restart(t, names[0])
	if a := instances()[names[0]]; a.State != "running" {
		t.Errorf("%s is %s after its restart", a.Name, a.State)
	}
}

func TestSingleProcess(t *testing.T) {
	t.Parallel()
	c := Start(t, Options{SingleProcess: true, FeatureGates: map[string]bool{"CoordinatedLeaderElection": false}})
	client := newClient(t, c.AdminConfig())
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kept"}}
	stored, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), cm, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.Restart(t, All)
	assertState(t, c, All, "running")
	assertKept(t, c, stored)
	// The controller manager works if it creates a ServiceAccount in every namespace. The scheduler works if it reports
	// that there is no node.
	c.Kubectl(t, "create", "namespace", "work")
	c.Kubectl(t, "wait", "--namespace=work", "--for=create", "serviceaccount/default", "--timeout=60s")
	c.Kubectl(t, "run", "--namespace=work", "--image=none", "pod")
	c.Kubectl(t, "wait", "--namespace=work", "--for=condition=PodScheduled=false", "pod/pod", "--timeout=60s")
}

// assertState checks the state that the launcher reports.
func assertState(t *testing.T, c *Cluster, component, want string) {
	t.Helper()
	components := c.Components(t)
	i := slices.IndexFunc(components, func(p Component) bool { return p.Name == component })
	if i < 0 {
		t.Fatalf("no %s among %+v", component, components)
	}
	if got := components[i].State; got != want {
		t.Errorf("%s is %s, want %s", component, got, want)
	}
}

// assertKept checks that the cluster still has the stored object, at the same URL and with the same credentials.
func assertKept(t *testing.T, c *Cluster, stored *corev1.ConfigMap) {
	t.Helper()
	got, err := newClient(t, c.AdminConfig()).CoreV1().ConfigMaps("default").Get(t.Context(), stored.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got.UID != stored.UID || got.ResourceVersion != stored.ResourceVersion {
		t.Errorf("stored %s at %s, now it is %s at %s", stored.UID, stored.ResourceVersion, got.UID, got.ResourceVersion)
	}
}
