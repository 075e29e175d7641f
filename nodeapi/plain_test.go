// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// largePods are pods with annotations of a size.
func largePods(n, size int) (pods []*corev1.Pod) {
	for i := range n {
		pod := testPod()
		pod.Name, pod.Annotations = fmt.Sprint("pod-", i), map[string]string{"large": strings.Repeat("x", size)}
		pods = append(pods, pod)
	}
	return pods
}

// ask sends a GET by a connection of its own and does not read the answer.
func (r *rig) ask(path string) net.Conn {
	r.Helper()
	conn, err := tls.Dial("tcp", strings.TrimPrefix(r.url, "https://"), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { _ = conn.Close() })
	_ = conn.NetConn().(*net.TCPConn).SetReadBuffer(4 << 10)
	fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: node\r\nAuthorization: Bearer admin\r\n\r\n", path)
	return conn
}

func TestPodsAreServedAsAList(t *testing.T) {
	r := start(t, &testBackend{}, nil)
	pending := testPod()
	pending.Name, pending.Status.Phase = "pending", corev1.PodPending
	for _, pods := range [][]*corev1.Pod{nil, {testPod()}, {testPod(), nil, pending}, largePods(3, 100<<10)} {
		r.setPods(pods...)
		for path, want := range map[string]int{"/pods": 0, "/runningpods/": 0} {
			for _, pod := range pods {
				if pod != nil && (path == "/pods" || pod.Status.Phase == corev1.PodRunning) {
					want++
				}
			}
			code, body := r.get(path)
			var list corev1.PodList
			if err := json.Unmarshal([]byte(body), &list); err != nil || code != 200 || list.Kind != "PodList" || list.APIVersion != "v1" || list.Items == nil || len(list.Items) != want {
				t.Errorf("%s of %d pods: %d, %d items, %v", path, len(pods), code, len(list.Items), err)
			}
		}
	}
}

// TestListsOfPodsThatAreNotReadTakeLittleMemory: each held all pods twice.
func TestListsOfPodsThatAreNotReadTakeLittleMemory(t *testing.T) {
	const readers = 10
	r := start(t, &testBackend{}, nil)
	r.setPods(largePods(200, 100<<10)...)
	r.plainStall = time.Hour
	before := heap()
	for range readers {
		r.ask("/pods")
	}
	// While it is encoded, a pod takes a multiple of its size.
	awaitStacks(t, "the answers to wait for their clients", func(stacks []byte) bool {
		waiting := 0
		for _, stack := range strings.Split(string(stacks), "\n\n") {
			if strings.Contains(stack, "[IO wait") && strings.Contains(stack, ").servePods(") {
				waiting++
			}
		}
		return waiting == readers
	})
	if took := (heap() - before) / readers; took > 1<<20 {
		t.Errorf("a list that is not read takes %d KiB", took>>10)
	}
}

// TestAnswersThatAreNotReadAreGivenUp: they were held for a minute, and without limit.
func TestAnswersThatAreNotReadAreGivenUp(t *testing.T) {
	r := start(t, &testBackend{}, nil)
	r.setPods(largePods(200, 100<<10)...)
	r.plain, r.plainStall = make(chan struct{}, 2), time.Hour
	for range cap(r.plain) {
		r.ask("/pods")
	}
	awaitStacks(t, "the answers to wait", func([]byte) bool { return len(r.plain) == cap(r.plain) })
	if code, body := r.get("/pods"); code != http.StatusTooManyRequests {
		t.Errorf("%d %q", code, body)
	}
	if code, _ := r.get("/healthz"); code != http.StatusOK {
		t.Errorf("the health check: %d", code)
	}

	r = start(t, &testBackend{}, nil)
	r.setPods(largePods(200, 100<<10)...)
	r.plainStall = 2 * time.Second
	r.ask("/pods")
	if done := r.awaitRequest(endpointPods); done.Err == nil {
		t.Errorf("%+v", done)
	}
	if code, body := r.get("/pods"); code != http.StatusOK || len(body) < 200*100<<10 {
		t.Errorf("a client that reads: %d, %d bytes", code, len(body))
	}
}

// hijackable is an answer whose connection can be taken over.
type hijackable struct{ http.ResponseWriter }

func (hijackable) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, _ := net.Pipe()
	return conn, bufio.NewReadWriter(bufio.NewReader(conn), bufio.NewWriter(conn)), nil
}

// TestOnlyAStreamTakesItsConnectionOver: with the connection of another answer, a handler
// of metrics would leave the limits and the end of the Server behind.
func TestOnlyAStreamTakesItsConnectionOver(t *testing.T) {
	takeOver := func(conn net.Conn) net.Conn { return conn }
	for name, w := range map[string]*response{
		"no connection": {w: httptest.NewRecorder(), hijack: takeOver},
		"no stream":     {w: hijackable{httptest.NewRecorder()}},
		"neither":       {w: httptest.NewRecorder()},
	} {
		if _, _, err := w.Hijack(); err == nil || w.code != 0 {
			t.Errorf("%s: %v, code %d", name, err, w.code)
		}
	}
	w := &response{w: hijackable{httptest.NewRecorder()}, hijack: takeOver}
	if _, _, err := w.Hijack(); err != nil || w.code != http.StatusSwitchingProtocols {
		t.Errorf("a stream: %v, code %d", err, w.code)
	}
}
