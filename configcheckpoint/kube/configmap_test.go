// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/configcheckpoint"
	"github.com/kubewright/kubewright/internal/statuserr"
)

func TestConfigMapSourceRejectsBadReference(t *testing.T) {
	client := struct{ corev1client.ConfigMapsGetter }{}
	for _, test := range []struct {
		client               corev1client.ConfigMapsGetter
		namespace, name, key string
		want                 []string
	}{
		{nil, "kube-system", "agent", "config.yaml", []string{"client is nil"}},
		{client, "", "agent", "config.yaml", []string{`namespace ""`}},
		{client, "../x", "agent", "config.yaml", []string{`namespace "../x"`}},
		{client, "kube-system", "", "config.yaml", []string{`name ""`}},
		{client, "kube-system", "Agent/..", "config.yaml", []string{`name "Agent/.."`}},
		{client, "kube-system", "agent", "", []string{`key ""`}},
		{client, "kube-system", "agent", "..", []string{`key ".."`}},
		{client, "kube-system", "agent", "a/b", []string{`key "a/b"`}},
		{client, "kube-system", "agent", strings.Repeat("k", 254), []string{"key "}},
		{nil, "X", "X", "/", []string{"client is nil", "namespace", "name", "key"}},
	} {
		_, err := ConfigMap(test.client, test.namespace, test.name, test.key)
		if err == nil {
			t.Errorf("%q %q %q: no error", test.namespace, test.name, test.key)
			continue
		}
		for _, want := range test.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q is not in: %v", want, err)
			}
		}
	}
}

// watched is a source under test and its deliveries.
type watched struct {
	t      *testing.T
	server *apitest.Server
	got    chan delivery
}

func watchConfigMap(t *testing.T, s *apitest.Server) watched {
	return watchThrough(t, s, s.Client(apitest.User{}).CoreV1())
}

func watchThrough(t *testing.T, s *apitest.Server, client corev1client.ConfigMapsGetter) watched {
	source, err := ConfigMap(client, "kube-system", "agent", "config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	w := watched{t, s, make(chan delivery, 1000)}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for p, err := range source.Payloads(ctx) {
			w.got <- delivery{p, err}
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	synctest.Wait()
	return w
}

// last returns the last delivery, and drops all.
func (w watched) last() delivery {
	w.t.Helper()
	synctest.Wait()
	if len(w.got) == 0 {
		w.t.Fatal("nothing was yielded")
	}
	var a delivery
	for len(w.got) > 0 {
		a = <-w.got
	}
	return a
}

func (w watched) none() {
	w.t.Helper()
	synctest.Wait()
	if len(w.got) > 0 {
		w.t.Errorf("yielded %+v", <-w.got)
	}
}

func (w watched) yields(data string) {
	w.t.Helper()
	if a := w.last(); a.err != nil || string(a.payload.Data) != data || a.payload.Data == nil {
		w.t.Errorf("yielded %+v, want %q", a, data)
	}
}

func (w watched) fails(want error) {
	w.t.Helper()
	if a := w.last(); !errors.Is(a.err, want) || !strings.Contains(a.err.Error(), "ConfigMap kube-system/agent[config.yaml]") {
		w.t.Errorf("yielded %+v, want %v", a, want)
	}
}

func TestConfigMapSource(t *testing.T) { synctest.Test(t, testConfigMapSource) }
func testConfigMapSource(t *testing.T) {
	s := apitest.New(apitest.Options{})
	s.Put(agentConfig("A"))
	w := watchConfigMap(t, s)
	a := w.last()
	cm := apitest.Get[*corev1.ConfigMap](s, "kube-system", "agent")
	if string(a.payload.Data) != "A" || a.payload.Name != "ConfigMap kube-system/agent[config.yaml]" ||
		a.payload.Version != string(cm.UID)+"/"+cm.ResourceVersion {
		t.Errorf("%+v", a)
	}
	set := func(change func(*corev1.ConfigMap)) {
		apitest.Edit(s, "kube-system", "agent", change)
	}
	// An edit in place was ignored, which left part of a fleet on the old content.
	set(func(cm *corev1.ConfigMap) { cm.Data["config.yaml"] = "B" })
	w.yields("B")
	set(func(cm *corev1.ConfigMap) { cm.Data["config.yaml"] = "" })
	w.yields("")
	set(func(cm *corev1.ConfigMap) {
		delete(cm.Data, "config.yaml")
		cm.BinaryData = map[string][]byte{"config.yaml": {0, 1}}
	})
	w.yields("\x00\x01")
	set(func(cm *corev1.ConfigMap) { cm.BinaryData = nil })
	w.fails(ErrKeyNotFound)
	set(func(cm *corev1.ConfigMap) { cm.Data = map[string]string{"config.yaml": "C"} })
	w.yields("C")
	apitest.Remove[*corev1.ConfigMap](s, "kube-system", "agent")
	w.fails(configcheckpoint.ErrSourceNotFound)
	s.Put(agentConfig("D"))
	w.yields("D")
	// Another object in the namespace is none of its business.
	other := agentConfig("X")
	other.Name = "other"
	s.Put(other)
	w.none()
	for _, r := range s.Requests(apitest.Match{}) {
		if r.FieldSelector != "metadata.name=agent" || r.Resource != "configmaps" || r.Verb != "list" && r.Verb != "watch" {
			t.Errorf("request %+v", r)
		}
	}
}

// unselective drops the field selectors of requests.
type unselective struct{ http.RoundTripper }

func (u unselective) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	query := req.URL.Query()
	query.Del("fieldSelector")
	req.URL.RawQuery = query.Encode()
	return u.RoundTripper.RoundTrip(req)
}

// TestOtherConfigMapsAreIgnored, if the server or a proxy ignores the field selector, as the
// fake clientset of client-go does. Another ConfigMap of the namespace that was changed first
// in a watch was the configuration, and one that was changed later ended ours.
func TestOtherConfigMapsAreIgnored(t *testing.T) { synctest.Test(t, testOtherConfigMapsAreIgnored) }
func testOtherConfigMapsAreIgnored(t *testing.T) {
	s := apitest.New(apitest.Options{})
	other := agentConfig("X")
	other.Name = "other"
	s.Put(other)
	s.Put(agentConfig("A"))
	cfg := s.Config(apitest.User{})
	cfg.Wrap(func(rt http.RoundTripper) http.RoundTripper { return unselective{rt} })
	w := watchThrough(t, s, corev1client.NewForConfigOrDie(cfg))
	w.yields("A")
	edit := func(name, data string) {
		apitest.Edit(s, "kube-system", name, func(cm *corev1.ConfigMap) { cm.Data["config.yaml"] = data })
	}
	for range 2 {
		edit("other", "first in a watch")
		time.Sleep(2 * aliveAfter)
		edit("other", "later in a watch")
		w.none()
		s.DropWatches(apitest.Match{})
		time.Sleep(time.Second)
	}
	edit("agent", "B")
	time.Sleep(configMapRetry().Cap)
	w.yields("B")
	apitest.Remove[*corev1.ConfigMap](s, "kube-system", "other")
	w.none()
}

// TestUpdateAfterLongIdle: the watch has been renewed many times by then, at a
// cost of a few requests an hour.
func TestUpdateAfterLongIdle(t *testing.T) { synctest.Test(t, testUpdateAfterLongIdle) }
func testUpdateAfterLongIdle(t *testing.T) {
	s := apitest.New(apitest.Options{})
	s.Put(agentConfig("A"))
	w := watchConfigMap(t, s)
	w.yields("A")
	s.ResetJournal()
	time.Sleep(24 * time.Hour)
	// A watch lives for five to ten minutes.
	if n := len(s.Requests(apitest.Match{})); n < 24*6 || n > 24*12 {
		t.Errorf("%d requests in a day", n)
	}
	s.Put(agentConfig("B"))
	w.yields("B")
}

func TestConfigMapOutages(t *testing.T) {
	for name, test := range map[string]struct {
		fault apitest.Fault
		want  string
	}{
		"forbidden":   {apitest.Fault{Status: statuserr.Forbidden("configmaps", "agent", "not yours")}, "not yours"},
		"away":        {apitest.Fault{Err: apitest.ErrConnRefused}, "refused"},
		"reset":       {apitest.Fault{Err: apitest.ErrConnReset}, "reset"},
		"overloaded":  {apitest.Fault{Status: statuserr.TooManyRequests(1)}, "too many requests"},
		"broken":      {apitest.Fault{Status: statuserr.InternalError("etcd is away")}, "etcd is away"},
		"hanging":     {apitest.Fault{Hang: true}, "deadline"},
		"unavailable": {apitest.Fault{Status: statuserr.Unavailable(0)}, "unable to handle"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := apitest.New(apitest.Options{})
				s.Put(agentConfig("A"))
				remove := s.Inject(test.fault)
				w := watchConfigMap(t, s)
				time.Sleep(10 * time.Minute)
				a := w.last()
				if a.err == nil || !strings.Contains(strings.ToLower(a.err.Error()), test.want) || !strings.Contains(a.err.Error(), "ConfigMap kube-system/agent") {
					t.Errorf("yielded %+v, want an error with %q", a, test.want)
				}
				limit := 25
				if name == "overloaded" || name == "reset" {
					limit *= 11 // client-go repeats each of these ten times
				}
				if n := len(s.Requests(apitest.Match{})); n > limit {
					t.Errorf("%d requests in ten minutes", n)
				}
				remove()
				time.Sleep(2 * time.Minute)
				w.yields("A")
				s.Inject(test.fault)
				s.DropWatches(apitest.Match{})
				time.Sleep(10 * time.Minute)
				if a := w.last(); a.err == nil {
					t.Errorf("yielded %+v, want an error", a)
				}
			})
		})
	}
}

// TestOldServerListsInstead: a server that can't stream lists makes no error.
func TestOldServerListsInstead(t *testing.T) { synctest.Test(t, testOldServerListsInstead) }
func testOldServerListsInstead(t *testing.T) {
	s := apitest.New(apitest.Options{Gates: map[apitest.Gate]bool{apitest.WatchList: false}})
	s.Put(agentConfig("A"))
	w := watchConfigMap(t, s)
	a := <-w.got
	if a.err != nil || string(a.payload.Data) != "A" {
		t.Errorf("the first was %+v", a)
	}
	s.Compact()
	s.ExpireWatches(apitest.Match{})
	time.Sleep(time.Minute)
	for len(w.got) > 0 {
		if a := <-w.got; a.err != nil {
			t.Errorf("yielded %+v", a)
		}
	}
	s.Put(agentConfig("B"))
	w.yields("B")
}

// TestARestoredServerIsReadAgain: the source waited for the version that it knew
// before, and delivered neither the restored content nor an edit of it.
func TestARestoredServerIsReadAgain(t *testing.T) {
	for _, refuses := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			server := apitest.New(apitest.Options{})
			server.Put(agentConfig("1"))
			restore := server.Backup()
			server.Put(agentConfig("2"))
			w := watchConfigMap(t, server)
			w.yields("2")
			time.Sleep(time.Minute)
			if refuses {
				over := server.Inject(apitest.Fault{Err: apitest.ErrConnRefused})
				server.DropWatches(apitest.Match{})
				time.Sleep(time.Minute)
				restore()
				over()
			} else {
				restore()
			}
			time.Sleep(2 * time.Minute) // a reflector waits for up to one
			w.yields("1")
			server.Put(agentConfig("3"))
			w.yields("3")
		})
	}
}

// TestMetadataOnlyEditIsIgnored: every label or annotation restarted every
// agent of the fleet, because the identity of a configuration was its object's.
func TestMetadataOnlyEditIsIgnored(t *testing.T) { inDir(t, testMetadataOnlyEditIsIgnored) }
func testMetadataOnlyEditIsIgnored(t *testing.T, dir string) {
	s := apitest.New(apitest.Options{})
	s.Put(agentConfig("A"))
	n := newNode(t, s, dir)
	n.start()
	n.restarts()
	n.goes(configcheckpoint.DefaultSoak)
	before := n.record()
	apitest.Edit(s, "kube-system", "agent", func(cm *corev1.ConfigMap) {
		cm.Labels = map[string]string{"edited": "yes"}
		cm.Annotations = map[string]string{"edited": "yes"}
		cm.Data["other.yaml"] = "x"
	})
	apitest.Remove[*corev1.ConfigMap](s, "kube-system", "agent")
	s.Put(agentConfig("A")) // another UID, the same bytes
	n.goes(time.Hour)
	n.runs()
	n.is("A", isTrue, configcheckpoint.PhaseGood, configcheckpoint.ReasonGood)
	if n.record() != before {
		t.Error("the store was written")
	}
}

func TestSourceDeletedKeepsConfig(t *testing.T) { inDir(t, testSourceDeletedKeepsConfig) }
func testSourceDeletedKeepsConfig(t *testing.T, dir string) {
	s := apitest.New(apitest.Options{})
	s.Put(agentConfig("A"))
	n := newNode(t, s, dir)
	n.start()
	n.restarts()
	n.goes(configcheckpoint.DefaultSoak)
	apitest.Remove[*corev1.ConfigMap](s, "kube-system", "agent")
	n.goes(24 * time.Hour)
	n.runs()
	n.is("A", isTrue, configcheckpoint.PhaseGood, configcheckpoint.ReasonSourceFailed)
	if m := n.c.Status().Message; !strings.Contains(m, "ConfigMap kube-system/agent[config.yaml]") {
		t.Error(m)
	}
	n.stop(nil)
	n.start()
	n.is("A", isTrue, configcheckpoint.PhaseGood, configcheckpoint.ReasonSourceFailed)
	s.Put(agentConfig("B"))
	n.goes(time.Minute)
	n.restarts()
	n.is("B", isTrue, configcheckpoint.PhaseTrial, configcheckpoint.ReasonTrial)
}

// TestBootWithoutAPI: the agent comes up on the configuration on its disk.
func TestBootWithoutAPI(t *testing.T) { inDir(t, testBootWithoutAPI) }
func testBootWithoutAPI(t *testing.T, dir string) {
	s := apitest.New(apitest.Options{})
	s.Put(agentConfig("A"))
	n := newNode(t, s, dir)
	n.start()
	n.restarts()
	n.goes(configcheckpoint.DefaultSoak)
	n.stop(nil)
	s.Inject(apitest.Fault{Hang: true})
	before := time.Now()
	n.start()
	if n.active.Config != "A" || time.Since(before) != 0 {
		t.Errorf("runs %q after %v", n.active.Config, time.Since(before))
	}
	n.goes(time.Hour)
	n.runs()
	n.is("A", isTrue, configcheckpoint.PhaseGood, configcheckpoint.ReasonSourceFailed)
}

// TestNodeIdentity: a node may read the ConfigMap only if a Role says so, and
// one that names it alone will do.
func TestNodeIdentity(t *testing.T) { synctest.Test(t, testNodeIdentity) }
func testNodeIdentity(t *testing.T) {
	s := apitest.New(apitest.Options{})
	s.Put(agentConfig("A"))
	source, err := ConfigMap(s.Client(apitest.NodeUser("n1")).CoreV1(), "kube-system", "agent", "config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var got []string
	for p, err := range source.Payloads(ctx) {
		got = append(got, string(p.Data))
		if err != nil && !strings.Contains(err.Error(), "forbidden") {
			t.Errorf("%v", err)
		}
		break
	}
	if !slices.Equal(got, []string{""}) {
		t.Errorf("%q, want an error: the Node authorizer knows no reason", got)
	}
}

// TestWatchThatIsAlwaysExpired: a stream whose first event says that the
// resource version is gone was listed for and started again at once, without end.
func TestWatchThatIsAlwaysExpired(t *testing.T) {
	synctest.Test(t, testWatchThatIsAlwaysExpired)
}
func testWatchThatIsAlwaysExpired(t *testing.T) {
	s := apitest.New(apitest.Options{})
	s.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "agent"}, Data: map[string]string{"config.yaml": "A"}})
	answers := 0
	heal := s.Inject(apitest.Fault{Match: apitest.Match{Verb: "watch"}, Answer: func(apitest.Request) (*http.Response, error) {
		if answers++; answers > 1000 {
			return nil, apitest.ErrConnReset
		}
		return &http.Response{
			StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}},
			Body: io.NopCloser(strings.NewReader(`{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410,"message":"too old"}}`)),
		}, nil
	}})
	w := watchConfigMap(t, s)
	time.Sleep(10 * time.Minute)
	if a := w.last(); !apierrors.IsResourceExpired(a.err) {
		t.Errorf("yielded %+v, want 410", a)
	}
	if n := len(s.Requests(apitest.Match{})); n > 50 {
		t.Errorf("%d requests in ten minutes", n)
	}
	heal()
	time.Sleep(2 * time.Minute)
	w.yields("A")
}

// FuzzConfigMapSource puts any payload in the ConfigMap.
func FuzzConfigMapSource(f *testing.F) {
	f.Add("", []byte(nil), true)
	f.Add("a: b", []byte{}, false)
	f.Add("\x00\xff", []byte("\xff\xfe"), true)
	f.Fuzz(func(t *testing.T, text string, binary []byte, both bool) {
		synctest.Test(t, func(t *testing.T) {
			s := apitest.New(apitest.Options{})
			cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "agent"}}
			want := binary
			if both {
				text = strings.ToValidUTF8(text, "?") // as an API server stores it
				cm.Data = map[string]string{"config.yaml": text}
				want = []byte(text)
			} else {
				cm.BinaryData = map[string][]byte{"config.yaml": binary}
			}
			s.Put(cm)
			w := watchConfigMap(t, s)
			a := w.last()
			if a.err != nil || a.payload.Data == nil || !bytes.Equal(a.payload.Data, want) {
				t.Errorf("yielded %+v, want %q", a, want)
			}
		})
	})
}
