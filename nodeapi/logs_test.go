// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodeapi

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestLogOptionsAreValidatedAsTheAPIServerDoes(t *testing.T) {
	var got LogOptions
	r := start(t, &testBackend{logs: func(_ context.Context, c Container, opts LogOptions) (io.ReadCloser, error) {
		if c.String() != "default/web/main" || c.UID != "1234-abcd" {
			t.Errorf("container %s, UID %s", c, c.UID)
		}
		got = opts
		return text("0123456789"), nil
	}}, nil)
	for _, c := range []struct {
		query string
		code  int
		body  string
		check func() bool
	}{
		{"", 200, "0123456789", func() bool { return !got.Follow && !got.Previous && *got.Stream == corev1.LogStreamAll }},
		{"tailLines=3&timestamps=true&previous=true", 200, "0123456789", func() bool { return *got.TailLines == 3 && got.Timestamps && got.Previous }},
		{"follow=true", 200, "0123456789", func() bool { return got.Follow }},
		{"previous=true&follow=true", 200, "0123456789", func() bool { return !got.Follow }},
		{"sinceSeconds=5", 200, "0123456789", func() bool { return *got.SinceSeconds == 5 }},
		{"sinceTime=2026-01-02T03:04:05.5Z", 200, "0123456789", func() bool { return got.SinceTime.UnixMilli() == 1767323045500 }},
		{"limitBytes=4", 200, "0123", func() bool { return *got.LimitBytes == 4 }},
		{"limitBytes=100", 200, "0123456789", nil},
		{"stream=Stderr", 200, "0123456789", func() bool { return *got.Stream == corev1.LogStreamStderr }},
		{"tailLines=0", 200, "0123456789", func() bool { return *got.TailLines == 0 }},
		{"tailLines=-1", 422, "tailLines", nil},
		{"limitBytes=0", 422, "limitBytes", nil},
		{"sinceSeconds=0", 422, "sinceSeconds", nil},
		{"sinceSeconds=5&sinceTime=2026-01-02T03:04:05Z", 422, "at most one", nil},
		{"stream=Both", 422, "stream", nil},
		{"stream=Stdout&tailLines=1", 422, "tailLines", nil},
	} {
		code, body := r.get("/containerLogs/default/web/main?" + c.query)
		if code != c.code || !strings.Contains(body, c.body) || code == 200 && body != c.body || c.check != nil && !c.check() {
			t.Errorf("%s: %d %q, options %+v", c.query, code, body, got)
		}
	}
}

func TestLogsOfWhatIsNotThereAre404(t *testing.T) {
	r := start(t, everyBackend(), nil)
	for path, sentence := range map[string]string{
		"/containerLogs/default/web/other":                  `container "other" is not in pod default/web, which has: setup, main, debugger`,
		"/containerLogs/default/gone/main":                  `pod default/gone is not on node "node-1"`,
		"/containerLogs/other/web/main":                     `pod other/web is not on node "node-1"`,
		"/exec/default/web/9999/main?command=a&output=1":    `pod default/web with UID 9999 is not on node "node-1"`,
		"/attach/default/web/other?output=1":                `container "other" is not in pod`,
		"/exec/default/web/other?command=a&output=1":        `container "other" is not in pod`,
		"/portForward/default/gone":                         `pod default/gone is not on node`,
		"/healthz/other":                                    `no health check "other"`,
		"/exec/default/web/1234-abcd/no?command=a&output=1": `container "no"`,
	} {
		if code, body := r.get(path); code != 404 || !strings.Contains(body, sentence) {
			t.Errorf("GET %s: %d %q", path, code, body)
		}
	}
	for _, container := range []string{"setup", "main", "debugger"} {
		if code, body := r.get("/containerLogs/default/web/" + container); code != 200 {
			t.Errorf("%s: %d %q", container, code, body)
		}
	}
}

// TestTheNewestPodOfANameIsMeant: Config.Pods yields in no order, and may yield a pod
// that was deleted by force and is still stopping.
func TestTheNewestPodOfANameIsMeant(t *testing.T) {
	var got types.UID
	r := start(t, &testBackend{logs: func(_ context.Context, c Container, _ LogOptions) (io.ReadCloser, error) {
		got = c.UID
		return text(""), nil
	}, exec: func(_ context.Context, c Container, _ []string, _ Streams) error {
		got = c.UID
		return nil
	}}, nil)
	pod := func(uid types.UID, second int64, deleted bool) *corev1.Pod {
		pod := testPod()
		pod.UID, pod.CreationTimestamp = uid, metav1.Unix(second, 0)
		if deleted {
			pod.DeletionTimestamp = new(metav1.Unix(10, 0))
		}
		return pod
	}
	for name, c := range map[string]struct{ want, other *corev1.Pod }{
		"the later one":                    {pod("a", 2, false), pod("b", 1, false)},
		"the later one, although deleted":  {pod("a", 2, true), pod("b", 1, false)},
		"of one second, one not deleted":   {pod("a", 1, false), pod("b", 1, true)},
		"of one second, the larger UID":    {pod("b", 1, false), pod("a", 1, false)},
		"of one second, both are deleted":  {pod("b", 1, true), pod("a", 1, true)},
		"another one of the name is later": {pod("a", 1, false), func() *corev1.Pod { p := pod("b", 2, false); p.Namespace = "other"; return p }()},
	} {
		for _, pods := range [][]*corev1.Pod{{c.want, c.other}, {c.other, c.want}} {
			r.setPods(pods...)
			if code, body := r.get("/containerLogs/default/web/main"); code != 200 || got != c.want.UID {
				t.Errorf("%s: got %s, want %s: %d %s", name, got, c.want.UID, code, body)
			}
		}
	}
	// A UID names its pod.
	older, newer := pod("a", 1, true), pod("b", 2, false)
	for _, pods := range [][]*corev1.Pod{{older, newer}, {newer, older}} {
		r.setPods(pods...)
		for _, want := range []types.UID{"a", "b"} {
			if code, body := r.do(http.MethodPost, "/run/default/web/"+string(want)+"/main?cmd=x", "admin", nil); code != 200 || got != want {
				t.Errorf("got %s, want %s: %d %s", got, want, code, body)
			}
		}
	}
}

func TestErrorsOfTheBackendKeepTheirStatus(t *testing.T) {
	var fail error
	r := start(t, &testBackend{logs: func(context.Context, Container, LogOptions) (io.ReadCloser, error) { return nil, fail }}, func(cfg *Config) { cfg.Pods = nil })
	for _, c := range []struct {
		err  error
		want int
	}{
		{apierrors.NewNotFound(corev1.Resource("pods"), "web"), 404},
		{fmt.Errorf("wrapped: %w", apierrors.NewBadRequest("container is waiting")), 400},
		{errors.New("disk on fire"), 500},
		{context.DeadlineExceeded, 504},
		{nil, 500},
	} {
		fail = c.err
		code, body := r.get("/containerLogs/default/web/main")
		if code != c.want || c.err != nil && !strings.Contains(body, c.err.Error()) {
			t.Errorf("%v: %d %q", c.err, code, body)
		}
	}
}

func TestALogThatBreaksOffIsNotAWholeLog(t *testing.T) {
	r := start(t, &testBackend{logs: func(context.Context, Container, LogOptions) (io.ReadCloser, error) {
		return io.NopCloser(io.MultiReader(strings.NewReader(strings.Repeat("x", 100<<10)), readerFunc(func([]byte) (int, error) { return 0, errors.New("disk on fire") }))), nil
	}}, nil)
	client := insecureClient(nil)
	defer client.CloseIdleConnections()
	resp, err := client.Do(r.request("/containerLogs/default/web/main"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if _, err := io.ReadAll(resp.Body); err == nil {
		t.Error("the client can't tell that the log is incomplete")
	}
	if done := r.awaitRequest(endpointLogs); done.Err == nil || done.Code != 200 {
		t.Errorf("reported %+v", done)
	}
}

// TestALogThatTheShutdownCutsIsNotAWholeLog: it looked as if the container had ended.
func TestALogThatTheShutdownCutsIsNotAWholeLog(t *testing.T) {
	for _, query := range []string{"", "?follow=true"} {
		r := start(t, &testBackend{logs: func(context.Context, Container, LogOptions) (io.ReadCloser, error) {
			return newEndless(strings.Repeat("x", 100<<10)), nil
		}}, nil)
		client := insecureClient(nil)
		defer client.CloseIdleConnections()
		resp, err := client.Do(r.request("/containerLogs/default/web/main" + query))
		if err != nil {
			t.Fatal(err)
		}
		go r.stop()
		if n, err := io.Copy(io.Discard, resp.Body); err == nil {
			t.Errorf("%q: the client can't tell that there is more than %d bytes", query, n)
		}
		_ = resp.Body.Close()
	}
}

func (r *rig) request(path string) *http.Request {
	req, err := http.NewRequestWithContext(r.Context(), http.MethodGet, r.url+path, nil)
	if err != nil {
		r.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer admin")
	return req
}

// follow opens a followed log and returns its lines and the function that ends
// it.
func (r *rig) follow(t *testing.T, client *http.Client) (lines <-chan string, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	resp, err := client.Do(r.request("/containerLogs/default/web/main?follow=true").WithContext(ctx))
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != 200 {
		t.Fatal(resp.Status)
	}
	out := make(chan string, 10)
	go func() {
		defer close(out)
		defer func() { _ = resp.Body.Close() }()
		for scanner := bufio.NewScanner(resp.Body); scanner.Scan(); {
			select {
			case out <- scanner.Text():
			case <-ctx.Done():
			}
		}
	}()
	return out, cancel
}

func TestAFollowOfAContainerThatHasEndedEnds(t *testing.T) {
	terminated := testPod()
	terminated.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}
	restarted := testPod()
	restarted.Status.ContainerStatuses[0].RestartCount = 1
	failed := testPod()
	failed.Status = corev1.PodStatus{Phase: corev1.PodFailed}
	for name, pods := range map[string][]*corev1.Pod{"terminated": {terminated}, "restarted": {restarted}, "pod failed": {failed}, "pod gone": nil} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				reader, container := io.Pipe() // a backend whose reader never ends
				r, asked := &rig{pods: []*corev1.Pod{testPod()}}, &askedServer{}
				s, _ := asked.server(t)
				s.cfg.Pods, s.backend = r.all(), newBackend(&testBackend{logs: func(_ context.Context, _ Container, opts LogOptions) (io.ReadCloser, error) {
					if !opts.Follow {
						t.Error("the log of a running container is not followed")
					}
					return reader, nil
				}})
				w, ended := httptest.NewRecorder(), make(chan struct{})
				go func() {
					defer close(ended)
					req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/containerLogs/default/web/main?follow=true", nil)
					req.Header.Set("Authorization", "Bearer admin")
					s.ServeHTTP(w, req)
				}()
				fmt.Fprintln(container, "first words")
				time.Sleep(time.Hour)
				select {
				case <-ended:
					t.Fatal("a quiet log has ended before its container")
				default:
				}
				r.setPods(pods...)
				time.Sleep(3 * time.Second)
				fmt.Fprintln(container, "last words")
				began := time.Now()
				<-ended
				if took := time.Since(began); took < logDrain || took > logDrain+endCheck {
					t.Errorf("it ended %v after its last words", took)
				}
				if _, err := fmt.Fprintln(container, "none"); err == nil {
					t.Error("the reader is open")
				}
				if got := w.Body.String(); w.Code != 200 || got != "first words\nlast words\n" {
					t.Errorf("%d %q", w.Code, got)
				}
			})
		})
	}
	t.Run("ended before", func(t *testing.T) {
		r := start(t, &testBackend{logs: func(_ context.Context, _ Container, opts LogOptions) (io.ReadCloser, error) {
			if opts.Follow {
				t.Error("the log of an ended container is followed")
			}
			return text("all\n"), nil
		}}, nil)
		r.setPods(terminated)
		if code, body := r.get("/containerLogs/default/web/main?follow=true"); code != 200 || body != "all\n" {
			t.Errorf("%d %q", code, body)
		}
	})
}

// TestFollowedLogsShareTheirLooksAtThePods: each asked for all pods of the node once a
// second.
func TestFollowedLogsShareTheirLooksAtThePods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looks, pod := 0, testPod()
		s := &Server{cfg: Config{Pods: func(yield func(*corev1.Pod) bool) {
			looks++
			_ = yield(nil) && yield(pod)
		}}}
		c, began := Container{Pod: Pod{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}, Name: "main"}, instanceOf(pod, "main")
		for range 3 {
			before := looks
			for range 100 {
				if s.hasEnded(c, began) {
					t.Error("the container runs")
				}
			}
			if looks != before+1 {
				t.Errorf("%d looks for 100 logs", looks-before)
			}
			time.Sleep(500 * time.Millisecond)
			synctest.Wait()
		}
		pod = pod.DeepCopy()
		pod.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}
		if !s.hasEnded(c, began) {
			t.Error("the container has ended")
		}
		time.Sleep(500 * time.Millisecond)
		synctest.Wait()
		pod = nil
		if !s.hasEnded(c, began) {
			t.Error("the pod is gone")
		}
	})
}

func TestTooManyStreamsAreRefused(t *testing.T) {
	var refused int
	var mu sync.Mutex
	r := startWith(t, &testBackend{logs: func(context.Context, Container, LogOptions) (io.ReadCloser, error) { return newEndless("line\n"), nil }}, func(cfg *Config) {
		cfg.Hooks.Streams = func(s StreamsOpen) {
			mu.Lock()
			defer mu.Unlock()
			if s.Rejected {
				refused++
			}
			if s.Open > 2 {
				t.Errorf("%d streams are open", s.Open)
			}
		}
	}, func(s *Server) { s.streams.max = 2 })
	client := insecureClient(nil)
	defer client.CloseIdleConnections()
	for range 2 {
		lines, stop := r.follow(t, client)
		defer stop()
		await(t, "a line", lines)
	}
	resp, err := client.Do(r.request("/containerLogs/default/web/main"))
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != 429 || resp.Header.Get("Retry-After") == "" {
		t.Error(resp.Status, resp.Header)
	}
	if code, _ := r.get("/healthz"); code != 200 {
		t.Errorf("healthz is %d while streams are open", code)
	}
	mu.Lock()
	defer mu.Unlock()
	if refused != 1 {
		t.Errorf("%d refusals were reported", refused)
	}
}
