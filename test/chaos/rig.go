// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/kubewright/kubewright/internal/smalldisk"
	"github.com/kubewright/kubewright/test/e2e/harness"
)

// nodeName is the name of the only node.
const nodeName = "chaos"

// diskSize is the capacity of the kubelet's disk: much more than the pods need.
var diskSize = smalldisk.Capacity{MiB: 48, Files: 8000}

// A rig holds all parts of a run.
type rig struct {
	host    *host
	log     func(format string, args ...any)
	dir     string // the directory with the results
	cluster *harness.Cluster
	client  *kubernetes.Clientset
	make    workloads
	proxy   *proxy
	disk    *smalldisk.Disk
	clock   *clock
	kubelet *supervisor
	record  *recorder
	node    *nodeWatch
	churn   *churn

	stopWatching context.CancelFunc
	watchers     sync.WaitGroup
	failure      chan error // of a process that must keep running

	mu      sync.Mutex
	table   processTable
	running map[containerKey]int // instances at the last scan
	left    []process            // processes of the kubelet, shims included
}

// root returns the kubelet's directory.
func (r *rig) root() string { return filepath.Join(r.disk.Dir, "kubelet") }

// prepare starts everything except the kubelet.
func (r *rig) prepare(ctx context.Context, seed uint64) (err error) {
	module, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return fmt.Errorf("find the module: %w", err)
	}
	source := strings.TrimSpace(string(module))
	if r.clock, err = newClock(filepath.Join(r.dir, "clock")); err != nil {
		return err
	}
	r.log("building examples/kubelet, with a clock that can be stepped")
	binary, err := buildKubelet(ctx, source, r.dir, r.clock)
	if err != nil {
		return err
	}
	if r.disk, err = smalldisk.Mount(filepath.Join(r.dir, "disk"), diskSize); err != nil {
		return err
	}
	r.log("starting a control plane")
	var kubeconfig string
	if err := r.host.try(func() {
		r.cluster = harness.Start(r.host, harness.Options{})
		for _, file := range []string{"serviceaccount.yaml", "kubelet.yaml"} {
			r.cluster.Kubectl(r.host, "apply", "-f", filepath.Join(source, "examples/rbac", file))
		}
		kubeconfig = r.cluster.NodeKubeconfig(r.host, nodeName)
	}); err != nil {
		return err
	}
	if r.client, err = kubernetes.NewForConfig(r.cluster.AdminConfig()); err != nil {
		return err
	}
	if r.proxy, err = newProxy(strings.TrimPrefix(r.cluster.Server(), "https://")); err != nil {
		return err
	}
	if kubeconfig, err = r.throughProxy(kubeconfig); err != nil {
		return err
	}
	r.kubelet, err = newSupervisor(binary, filepath.Join(r.dir, "kubelet.log"),
		"--kubeconfig="+kubeconfig, "--node-name="+nodeName, "--node-credentials", "--root-dir="+r.root(), "--port=0", "--publish-cpus",
		"--sync-interval=1s", "--orphan-delay=1s", "--mass-hold=30s", "-v=2", "--config-soak=5s",
		"--config-map="+strings.Join([]string{settingsNamespace, settingsName, settingsKey}, "/"))
	if err != nil {
		return err
	}
	return r.populate(ctx, seed)
}

// throughProxy copies a kubeconfig and replaces the server by the proxy.
func (r *rig) throughProxy(kubeconfig string) (string, error) {
	data, err := os.ReadFile(kubeconfig)
	if err != nil {
		return "", err
	}
	text := strings.ReplaceAll(string(data), r.cluster.Server(), "https://"+r.proxy.address())
	if text == string(data) {
		return "", errors.New("the kubeconfig does not name the API server as expected")
	}
	path := filepath.Join(r.dir, "kubeconfig")
	return path, os.WriteFile(path, []byte(text), 0o600)
}

// populate creates the initial objects and the watches.
func (r *rig) populate(ctx context.Context, seed uint64) error {
	r.make = workloads{node: nodeName, namespace: "chaos", out: filepath.Join(r.dir, "written")}
	if err := os.WriteFile(r.make.out, nil, 0o600); err != nil {
		return err
	}
	lw := watchOf(r.client.CoreV1().RESTClient(), "pods", r.make.namespace, fields.Everything())
	r.record = newRecorder(r.make.out, lw)
	r.node = &nodeWatch{record: r.record}
	r.churn = &churn{
		client: r.client, make: r.make, record: r.record,
		series: rand.New(rand.NewPCG(seed, 0)), count: map[string]int{}, failed: map[string]int{},
	}
	create := metav1.CreateOptions{}
	_, err := r.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: r.make.namespace}}, create)
	errs := []error{err, r.churn.configure(ctx, goodSettings("r0"))}
	_, err = r.client.ResourceV1().DeviceClasses().Create(ctx, r.make.deviceClass(), create)
	errs = append(errs, err)
	_, err = r.client.ResourceV1().ResourceClaimTemplates(r.make.namespace).Create(ctx, r.make.claimTemplate(), create)
	errs = append(errs, err)
	for _, d := range []func() *appsv1.Deployment{r.make.web, r.make.stubborn, r.make.flaky} {
		_, err = r.client.AppsV1().Deployments(r.make.namespace).Create(ctx, d(), create)
		errs = append(errs, err)
	}
	_, err = r.client.AppsV1().DaemonSets(r.make.namespace).Create(ctx, r.make.agent(), create)
	if err := errors.Join(append(errs, err)...); err != nil {
		return err
	}

	watch, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r.stopWatching = cancel
	r.failure = make(chan error, 10)
	r.table.root = r.root()
	r.watchers.Go(func() { follow(watch, lw, r.record) })
	r.watchers.Go(func() {
		follow(watch, watchOf(r.client.CoreV1().RESTClient(), "nodes", "", fields.OneTermEqualSelector(metav1.ObjectNameField, nodeName)), r.node)
	})
	r.watchers.Go(func() { r.fail(r.scan(watch)) })
	r.watchers.Go(func() { r.fail(r.kubelet.run(watch)) })
	return nil
}

func watchOf(client rest.Interface, resource, namespace string, selector fields.Selector) *cache.ListWatch {
	return cache.NewListWatchFromClient(client, resource, namespace, selector)
}

// fail ends the run with an error.
func (r *rig) fail(err error) {
	if err != nil {
		r.failure <- err
	}
}

// scanInterval is the time between two scans of the process table.
const scanInterval = 150 * time.Millisecond

// scan scans the process table until ctx is done.
func (r *rig) scan(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := r.look(); err != nil {
			return err
		}
		sleep(ctx, scanInterval)
	}
	return nil
}

// look scans the process table once.
func (r *rig) look() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	found, err := r.table.scan()
	if err != nil {
		return err
	}
	r.record.processes(found, r.root(), overlapsOf(found, r.root(), process.lives))
	seen := map[instance]bool{}
	r.running = map[containerKey]int{}
	for _, p := range found {
		if i, ok := p.instance(r.root()); ok && !seen[i] {
			seen[i] = true
			r.running[containerKey{i.UID, i.Container}]++
		}
	}
	r.left = found
	return nil
}

// close ends everything, in any state of the run, and returns the errors.
func (r *rig) close() error {
	var errs []error
	if r.stopWatching != nil {
		r.stopWatching()
		r.watchers.Wait()
		// A failed run leaves pods behind.
		if err := r.look(); err == nil {
			for _, p := range r.left {
				if found, err := os.FindProcess(p.PID); err == nil {
					_ = found.Kill()
				}
			}
		}
	}
	if r.proxy != nil {
		errs = append(errs, r.proxy.close())
	}
	for _, complaint := range r.host.close() {
		errs = append(errs, errors.New(complaint))
	}
	if r.disk != nil {
		errs = append(errs, r.disk.Unmount())
	}
	if r.clock != nil {
		errs = append(errs, r.clock.close())
	}
	return errors.Join(errs...)
}
