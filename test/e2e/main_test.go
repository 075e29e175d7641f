// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"flag"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/kubewright/kubewright/test/e2e/harness"
)

// shared is the cluster of all tests that do not disturb it. It has the
// defaults of Kubernetes and an audit log for counting requests. Tests that
// kill or pause a component, or need other settings, start their own cluster.
var shared = harness.Shared{Options: harness.Options{Audit: true}}

// The tests run side by side, because they spend most of their time waiting:
// for leases that expire, for grace periods, and while requests are counted.
// Each test calls quiet or busy first. Its nodes, namespaces, leases and user
// agents have names that no other test uses.
var (
	quietTests sync.WaitGroup
	busyTests  = make(chan struct{}, 3)
	oneStart   sync.Mutex // held while a cluster starts
)

// quiet marks a test that hardly uses the CPU, and each test that bounds a
// duration. Quiet tests run first, all of them side by side.
func quiet(t *testing.T) {
	quietTests.Add(1)
	t.Cleanup(quietTests.Done)
	t.Parallel() // returns when all tests have called quiet or busy
}

// busy marks a test that may delay others: it waits until the quiet tests have
// ended, and at most three busy tests run at once.
func busy(t *testing.T) {
	t.Parallel()
	began := time.Now()
	quietTests.Wait()
	busyTests <- struct{}{}
	t.Cleanup(func() { <-busyTests })
	t.Logf("waited %v for its turn", time.Since(began).Round(time.Second))
}

// exampleLease is held by a test whose programs are elected by the Lease
// kubewright/example of the shared cluster, which election.yaml names.
var exampleLease sync.Mutex

// alone holds a lock until a test and its programs have ended.
func alone(t *testing.T, lock *sync.Mutex) {
	lock.Lock()
	t.Cleanup(lock.Unlock)
}

// ownCluster starts a cluster for one test. Clusters start one after the other,
// because a start keeps two cores busy.
func ownCluster(t *testing.T, o harness.Options) *harness.Cluster {
	t.Helper()
	oneStart.Lock()
	defer oneStart.Unlock()
	return harness.Start(t, o)
}

// binaries is the directory of the examples' executables.
var binaries string

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "kubewright-e2e-")
	if err == nil {
		defer os.RemoveAll(dir)
		binaries = dir
		// quiet and busy limit the number of tests. The default, one test per
		// core, would let waiting tests keep out all others.
		err = flag.Set("test.parallel", "1000")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return shared.Run(m)
}
