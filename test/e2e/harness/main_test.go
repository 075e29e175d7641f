// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

var shared = Shared{Options: Options{Audit: true}}

// victimVariable makes the test binary run as a test that will be killed.
const victimVariable = "KUBEWRIGHT_TEST_VICTIM"

func TestMain(m *testing.M) {
	if os.Getenv(victimVariable) != "" {
		victim()
	}
	flag.Parse()
	// Most tests have a cluster or two of their own, which take half a gigabyte each.
	if parallel := flag.Lookup("test.parallel").Value; parallel.String() != "1" {
		if err := parallel.Set("2"); err != nil {
			panic(err)
		}
	}
	os.Exit(shared.Run(m))
}

// victim starts a cluster, prints its status, and waits to be killed.
func victim() {
	c, err := start(bare)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if err := json.NewEncoder(os.Stdout).Encode(c.status); err != nil {
		os.Exit(1)
	}
	time.Sleep(time.Hour)
}

// bare is a cluster that starts quickly: etcd and the API server.
var bare = Options{Without: []string{ControllerManager, Scheduler}}

// newClient returns a clientset.
func newClient(t *testing.T, cfg *rest.Config) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return client
}
