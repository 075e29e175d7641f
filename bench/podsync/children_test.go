// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podsync

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/bench/internal/child"
)

func TestMain(m *testing.M) {
	child.Main(m, func(role string) error {
		if role == "server" {
			return serve()
		}
		return runPods(role)
	})
}

// state is the statistics that a controller's process reports.
type state struct {
	Started    int64
	SinceFirst time.Duration // since the provider got the first pod
	CPU        time.Duration
}

// runPods is the process of a controller. It answers each line of input with
// its state.
func runPods(peer string) error {
	cfg, err := clientcmd.BuildConfigFromFlags("", os.Getenv("BENCH_KUBECONFIG"))
	if err != nil {
		return err
	}
	cfg.QPS = -1
	cfg.ContentType = "application/vnd.kubernetes.protobuf"
	cfg.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	cfg.DisableCompression = true // as in the Kubernetes components: the network is fast, the CPU is not
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := peers[peer](ctx, client, os.Getenv("BENCH_NODE")); err != nil {
		return err
	}
	answer := json.NewEncoder(os.Stdout)
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var usage syscall.Rusage
		_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage) // can't fail for the calling process
		s := state{Started: started.Load(), CPU: time.Duration(usage.Utime.Nano() + usage.Stime.Nano())}
		if first := firstStart.Load(); first != 0 {
			s.SinceFirst = time.Duration(time.Now().UnixNano() - first)
		}
		if err := answer.Encode(s); err != nil {
			return err
		}
	}
	return nil
}

// serve is the process of the stub server: the in-memory API server over HTTP/2
// and TLS, with pods bound to a node, and a latency before each answer. It
// answers each line of input with the number of status writes so far.
func serve() error {
	pods, err := strconv.Atoi(os.Getenv("BENCH_PODS"))
	if err != nil {
		return err
	}
	latency, err := time.ParseDuration(os.Getenv("BENCH_LATENCY"))
	if err != nil {
		return err
	}
	s := apitest.New(apitest.Options{})
	for i := range pods {
		s.Put(newPod(fmt.Sprintf("pod-%05d", i), os.Getenv("BENCH_NODE")))
	}
	s.Inject(apitest.Fault{Latency: latency})
	web := httptest.NewUnstartedServer(s.Handler(apitest.User{}))
	web.EnableHTTP2 = true
	web.Config.ErrorLog = nil
	web.StartTLS()
	defer web.Close()
	answer := json.NewEncoder(os.Stdout)
	if err := answer.Encode(map[string]any{"URL": web.URL, "Cert": web.Certificate().Raw}); err != nil {
		return err
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		if err := answer.Encode(len(s.Requests(apitest.Match{Verb: "patch,update", Resource: "pods/status"}))); err != nil {
			return err
		}
	}
	return nil
}
