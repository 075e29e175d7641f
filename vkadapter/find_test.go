// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package vkadapter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/virtual-kubelet/virtual-kubelet/errdefs"
	"github.com/virtual-kubelet/virtual-kubelet/node"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/podsync"
)

var (
	errPod    = errors.New("error of GetPod")
	errStatus = errors.New("error of GetPodStatus")
	errList   = errors.New("error of GetPods")
	errMine   = errors.New("an error that Config.NotFound knows")
)

// scripted is a provider with one answer for each question.
type scripted struct {
	stub
	pod       *corev1.Pod
	podErr    error
	noPodErr  error // of GetPod for a pod that cannot exist; nil: podErr
	status    *corev1.PodStatus
	statusErr error
	list      []*corev1.Pod
	listErr   error
	during    func() // what happens while GetPod or GetPods answers; nil: nothing

	mu    sync.Mutex
	calls []string
}

func (s *scripted) did(call string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, call)
}

func (s *scripted) GetPod(_ context.Context, _, name string) (*corev1.Pod, error) {
	s.did("GetPod")
	s.meanwhile()
	if s.noPodErr != nil && name == absentName {
		return nil, s.noPodErr
	}
	return s.pod, s.podErr
}

func (s *scripted) GetPodStatus(context.Context, string, string) (*corev1.PodStatus, error) {
	s.did("GetPodStatus")
	return s.status, s.statusErr
}

func (s *scripted) GetPods(context.Context) ([]*corev1.Pod, error) {
	s.did("GetPods")
	s.meanwhile()
	return s.list, s.listErr
}

func (s *scripted) meanwhile() {
	if s.during != nil {
		s.during()
	}
}

func adapterOf(t *testing.T, provider node.PodLifecycleHandler, cfg Config) *Adapter {
	t.Helper()
	cfg.NodeName = "vk"
	a, err := New(provider, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// httpError is an error of a client of a back end.
type httpError struct{ StatusCode int32 }

func (e *httpError) Error() string { return "an answer" }

type methodError struct{ code int }

func (e methodError) Error() string   { return "an answer" }
func (e methodError) StatusCode() int { return e.code }

type otherField struct{ StatusCode string }

func (otherField) Error() string { return "404" }

func TestIsNotFound(t *testing.T) {
	for err, want := range map[error]bool{
		errdefs.NotFound("x"):                                   true,
		apierrors.NewNotFound(corev1.Resource("pods"), "x"):     true,
		podsync.ErrNotFound:                                     true,
		&httpError{404}:                                         true,
		fmt.Errorf("get: %w", &httpError{404}):                  true,
		errors.Join(errPod, fmt.Errorf("%w", methodError{404})): true,
		&httpError{500}:                                         false,
		methodError{410}:                                        false,
		fmt.Errorf("404 %w", methodError{500}):                  false,
		otherField{"404"}:                                       false,
		(*httpError)(nil):                                       false,
		errors.New("404 not found"):                             false,
	} {
		if got := IsNotFound(err); got != want {
			t.Errorf("%#v: %v", err, got)
		}
	}
	if IsNotFound(nil) {
		t.Error("nil")
	}
}

// verdict is what find concludes.
func verdict(st podsync.State, err error) string {
	switch {
	case err == nil:
		return "held"
	case errors.Is(err, podsync.ErrNotFound):
		return "absent"
	case errors.Is(err, ErrOtherPod):
		return "other"
	}
	if unclear, ok := errors.AsType[*unclearError](err); ok {
		return "unclear: " + unclear.method
	}
	return err.Error()
}

// The diagram of DESIGN.md, edge by edge.
func TestDoesTheProviderHoldThePod(t *testing.T) {
	mine, nameless, other := webPod("1", "Running"), webPod("", "Running"), webPod("2", "Running")
	ended := webPod("2", "Failed")
	running := withStatus("Running")
	notFound, ofAPI := errdefs.NotFound("no job"), apierrors.NewNotFound(corev1.Resource("pods"), "web")
	neighbor, otherSpace := webPod("", "Running"), webPod("1", "Running")
	neighbor.Name, otherSpace.Namespace = "neighbor", "other"
	noName := &corev1.Pod{}
	adopt := func(h *holdings) { h.want(refWeb, mine) }
	listed := func(h *holdings) { h.shown(refWeb, mine, true) }
	over, refOther, refNone := webPod("", "Failed"), podsync.RefOf(other), podsync.RefOf(nameless)
	owned := func(owner, started *corev1.Pod) func(h *holdings) { // the name is that of owner
		return func(h *holdings) {
			if started != nil {
				h.want(refWeb, started)
			}
			h.create(owner)
			h.created(podsync.RefOf(owner))
		}
	}
	for name, c := range map[string]struct {
		*scripted
		before func(h *holdings)
		once   bool
		want   string
		calls  string
	}{
		"GetPod has it":                {scripted: &scripted{pod: mine}, want: "held", calls: "GetPod GetPodStatus"},
		"without a UID":                {scripted: &scripted{pod: nameless}, want: "held", calls: "GetPod GetPodStatus"},
		"errdefs' not found":           {scripted: &scripted{podErr: notFound}, want: "absent", calls: "GetPod"},
		"the API's not found":          {scripted: &scripted{podErr: fmt.Errorf("get: %w", ofAPI)}, want: "absent", calls: "GetPod"},
		"podsync's not found":          {scripted: &scripted{podErr: podsync.ErrNotFound}, want: "absent", calls: "GetPod"},
		"another UID":                  {scripted: &scripted{pod: other}, want: "other", calls: "GetPod"},
		"the UID of a pod of the API":  {scripted: &scripted{pod: other}, before: func(h *holdings) { h.handOver(other) }, want: "absent", calls: "GetPod"},
		"another one that has ended":   {scripted: &scripted{pod: ended}, want: "absent", calls: "GetPod"},
		"– after this one has started": {scripted: &scripted{pod: ended}, before: adopt, want: "other", calls: "GetPod"},
		"– that of the pod before":     {scripted: &scripted{pod: nameless}, before: owned(other, nil), want: "other", calls: "GetPod"},
		"– a status of the pod before": {scripted: &scripted{status: running}, before: owned(other, nil), want: "other", calls: "GetPod GetPodStatus"},
		"– that of a reported pod":     {scripted: &scripted{pod: nameless}, before: func(h *holdings) { h.notified(other) }, want: "other", calls: "GetPod"},
		"– that of the pod after":      {scripted: &scripted{pod: nameless}, before: owned(other, mine), want: "absent", calls: "GetPod"},
		"– the pod before is gone":     {scripted: &scripted{pod: nameless}, before: func(h *holdings) { owned(other, nil)(h); h.stopped(refOther) }, want: "held", calls: "GetPod GetPodStatus"},
		"– listed as nobody's":         {scripted: &scripted{pod: nameless}, before: func(h *holdings) { h.shown(refNone, nameless, true) }, want: "other", calls: "GetPod"},
		"– nobody's, this one started": {scripted: &scripted{pod: nameless}, before: func(h *holdings) { h.shown(refNone, nameless, true); adopt(h) }, want: "held", calls: "GetPod GetPodStatus"},
		"– listed as a stray":          {scripted: &scripted{pod: nameless}, before: func(h *holdings) { h.shown(stray, nameless, true) }, want: "other", calls: "GetPod"},
		"– a stray that has ended":     {scripted: &scripted{pod: over}, before: func(h *holdings) { h.shown(stray, nameless, true) }, want: "absent", calls: "GetPod"},
		"– that has ended":             {scripted: &scripted{pod: over}, want: "absent", calls: "GetPod"},
		"– ended, this one started":    {scripted: &scripted{pod: over}, before: adopt, want: "held", calls: "GetPod GetPodStatus"},
		"– ended, and the name was free": {
			scripted: &scripted{pod: over}, before: func(h *holdings) { h.looked(refWeb, notHeld(refWeb)) }, want: "held", calls: "GetPod GetPodStatus",
		},
		"– ended, and an end was there before": {
			scripted: &scripted{pod: over}, before: func(h *holdings) { h.looked(refWeb, errEarlier) }, want: "absent", calls: "GetPod",
		},
		"– ended, as GetPodStatus says": {scripted: &scripted{pod: webPod("", ""), status: &over.Status}, want: "absent", calls: "GetPod GetPodStatus"},
		"nothing, and a status":         {scripted: &scripted{status: running}, want: "held", calls: "GetPod GetPodStatus GetPodStatus"},
		"nothing, and no status":        {want: "absent", calls: "GetPod GetPodStatus GetPods"},
		"– and GetPods has it":          {scripted: &scripted{list: []*corev1.Pod{nil, neighbor, mine}}, want: "held", calls: "GetPod GetPodStatus GetPods GetPodStatus"},
		"– and GetPods fails":           {scripted: &scripted{listErr: errList}, want: "pod default/web(1): GetPod returns nothing, and GetPods: error of GetPods (if GetPods can't tell, set Config.ListOnce)", calls: "GetPod GetPodStatus GetPods"},
		"nothing, status not found":     {scripted: &scripted{statusErr: notFound}, want: "absent", calls: "GetPod GetPodStatus GetPods"},
		"nothing, and the status fails": {scripted: &scripted{statusErr: errStatus}, want: "absent", calls: "GetPod GetPodStatus GetPods"},
		"– and GetPods has the pod":     {scripted: &scripted{statusErr: errStatus, list: []*corev1.Pod{mine}}, want: "held", calls: "GetPod GetPodStatus GetPods GetPodStatus"},
		"– of a pod that may run":       {scripted: &scripted{statusErr: errStatus}, before: adopt, want: "unclear: GetPodStatus", calls: "GetPod GetPodStatus"},
		"– with the code 404":           {scripted: &scripted{statusErr: &httpError{StatusCode: 404}}, before: adopt, want: "absent", calls: "GetPod GetPodStatus GetPods"},
		"– with the code 500":           {scripted: &scripted{statusErr: &httpError{StatusCode: 500}}, before: adopt, want: "unclear: GetPodStatus", calls: "GetPod GetPodStatus"},
		"the program's not found":       {scripted: &scripted{podErr: errMine}, before: adopt, want: "absent", calls: "GetPod"},
		"– in GetPodStatus":             {scripted: &scripted{statusErr: errMine}, before: adopt, want: "absent", calls: "GetPod GetPodStatus GetPods"},
		"an error, and GetPods has it":  {scripted: &scripted{podErr: errPod, list: []*corev1.Pod{mine}}, want: "held", calls: "GetPod GetPods GetPodStatus"},
		"an error, and GetPods fails":   {scripted: &scripted{podErr: errPod, listErr: errList}, want: "unclear: GetPod", calls: "GetPod GetPods"},
		"a pod with an error":           {scripted: &scripted{pod: mine, podErr: errPod}, want: "absent", calls: "GetPod GetPods"},
		"a status with an error": {
			scripted: &scripted{status: running, statusErr: notFound}, want: "absent", calls: "GetPod GetPodStatus GetPods",
		},
		"an error, and GetPods has others": {
			scripted: &scripted{podErr: errPod, list: []*corev1.Pod{neighbor, otherSpace, nil}}, want: "absent", calls: "GetPod GetPods",
		},
		"an error, and GetPods has no names": {
			scripted: &scripted{podErr: errPod, list: []*corev1.Pod{noName, neighbor}}, want: "unclear: GetPod", calls: "GetPod GetPods",
		},
		"an error, GetPods has it and no names": {
			scripted: &scripted{podErr: errPod, list: []*corev1.Pod{mine, noName}}, want: "held", calls: "GetPod GetPods GetPodStatus",
		},
		"nothing, and GetPods has no names": {scripted: &scripted{list: []*corev1.Pod{noName}}, want: "absent", calls: "GetPod GetPodStatus GetPods"},
		"an error about a pod that may run": {scripted: &scripted{podErr: errPod}, before: adopt, want: "unclear: GetPod", calls: "GetPod GetPods GetPod"},
		"an error about a pod that ran and was listed": {
			scripted: &scripted{podErr: errors.New("no pod web"), noPodErr: errors.New("no pod " + absentName)},
			before:   listed, want: "absent", calls: "GetPod GetPods GetPod",
		},
		"– another one than for a pod that cannot exist": {
			scripted: &scripted{podErr: errPod, noPodErr: errors.New("no pod " + absentName)},
			before:   listed, want: "unclear: GetPod", calls: "GetPod GetPods GetPod",
		},
		"– a pod that cannot exist is not found": {
			scripted: &scripted{podErr: errPod, noPodErr: notFound}, before: listed, want: "unclear: GetPod", calls: "GetPod GetPods GetPod",
		},
		"– the pod was created, and never shown": {
			scripted: &scripted{podErr: errPod, noPodErr: notFound},
			before:   func(h *holdings) { h.create(mine); h.created(refWeb) }, want: "unclear: GetPod", calls: "GetPod GetPods GetPod",
		},
		"– the pod has ended": {
			scripted: &scripted{podErr: errPod, noPodErr: notFound},
			before:   func(h *holdings) { h.shown(refWeb, webPod("1", "Failed"), true) }, want: "absent", calls: "GetPod GetPods",
		},
		"– the pod was deleted": {
			scripted: &scripted{podErr: errPod, noPodErr: notFound},
			before:   func(h *holdings) { listed(h); h.deleted(refWeb, mine, mine) }, want: "absent", calls: "GetPod GetPods",
		},
		"an error, and GetPods may be called once": {
			scripted: &scripted{podErr: errPod, list: []*corev1.Pod{mine}}, once: true, want: "absent", calls: "GetPod",
		},
		"– about a pod that may run": {scripted: &scripted{podErr: errPod}, before: adopt, once: true, want: "unclear: GetPod", calls: "GetPod GetPod"},
		"GetPods has two, this one first": {
			scripted: &scripted{podErr: errPod, list: []*corev1.Pod{mine, other}}, want: "held", calls: "GetPod GetPods GetPodStatus",
		},
		"GetPods has two, this one last": {
			scripted: &scripted{podErr: errPod, list: []*corev1.Pod{other, mine}}, want: "held", calls: "GetPod GetPods GetPodStatus",
		},
		"GetPods has another one": {scripted: &scripted{podErr: errPod, list: []*corev1.Pod{other}}, want: "other", calls: "GetPod GetPods"},
	} {
		s := c.scripted
		if s == nil {
			s = &scripted{}
		}
		a := adapterOf(t, s, Config{ListOnce: c.once, NotFound: func(err error) bool { return errors.Is(err, errMine) || IsNotFound(err) }})
		if c.before != nil {
			c.before(a.held)
		}
		st, err := a.finder.find(t.Context(), refWeb, nil)
		if got := verdict(st, err); got != c.want || strings.Join(s.calls, " ") != c.calls {
			t.Errorf("%s: %s after %v, want %s after %s", name, got, s.calls, c.want, c.calls)
		}
		if err == nil && st.Ref != refWeb {
			t.Errorf("%s: the state is of %v", name, st.Ref)
		}
	}
}

// The pod that had the name is released while the provider answers with its instance. A pod that had
// an instance has none, and one that had none waits.
func TestTheNameChangesHandsDuringAnAnswer(t *testing.T) {
	first := webPod("2", "")
	for name, c := range map[string]struct {
		*scripted
		before func(h *holdings)
		want   string
	}{
		"a pod that waits":           {&scripted{pod: webPod("", "Running")}, nil, "other"},
		"– the instance has ended":   {&scripted{pod: webPod("", "Succeeded")}, nil, "other"},
		"– without a status":         {&scripted{pod: webPod("", "")}, nil, "other"},
		"– only a status":            {&scripted{status: withStatus("Running")}, nil, "other"},
		"– only GetPods has it":      {&scripted{podErr: errPod, list: []*corev1.Pod{webPod("", "Running")}}, nil, "other"},
		"a pod that had an instance": {&scripted{pod: webPod("", "Running")}, func(h *holdings) { h.want(refWeb, webPod("1", "Running")) }, "absent"},
	} {
		a := adapterOf(t, c.scripted, Config{})
		if c.before != nil {
			c.before(a.held)
		}
		a.held.create(first)
		a.held.created(podsync.RefOf(first))
		c.during = func() { a.held.forget(podsync.RefOf(first)) }
		st, err := a.finder.find(t.Context(), refWeb, nil)
		if got := verdict(st, err); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// The pod that had the name is released, and the next one is created, while GetPods answers.
func TestAListThatIsOlderThanThePod(t *testing.T) {
	first, second := webPod("2", ""), webPod("1", "")
	provider := &scripted{pod: webPod("", "Running"), list: []*corev1.Pod{webPod("", "Succeeded")}}
	a := adapterOf(t, provider, Config{})
	a.held.create(first)
	a.held.created(podsync.RefOf(first))
	provider.during = sync.OnceFunc(func() {
		a.held.forget(podsync.RefOf(first))
		a.held.create(second)
		a.held.created(refWeb)
	})
	states, err := a.List(t.Context())
	if err != nil || len(states) != 1 || states[0].Ref != refWeb || states[0].Stopped {
		t.Errorf("%+v, %v", states, err)
	}
}

// GetPods confirms a loss unless it may be called only once.
func TestInspectOfAProviderThatReturnsNothing(t *testing.T) {
	for once, want := range map[bool]bool{false: false, true: true} {
		a := adapterOf(t, &scripted{}, Config{ListOnce: once})
		a.held.want(refWeb, webPod("1", "Running"))
		if _, err := a.Inspect(t.Context(), refWeb); errors.Is(err, podsync.ErrNotFound) != want {
			t.Errorf("ListOnce %t: %v", once, err)
		}
	}
}

// byUID is scripted with methods that identify pods by UID.
type byUID struct{ *scripted }

func (b byUID) GetPodByUID(context.Context, string, string, types.UID) (*corev1.Pod, error) {
	b.did("GetPodByUID")
	return b.pod, b.podErr
}

func (b byUID) GetPodStatusByUID(context.Context, string, string, types.UID) (*corev1.PodStatus, error) {
	b.did("GetPodStatusByUID")
	return b.status, b.statusErr
}

// Only an instance without a UID is asked for by its name.
func TestWhoIsAskedForByUID(t *testing.T) {
	for ref, want := range map[podsync.Ref]string{refWeb: "GetPodByUID GetPodStatusByUID", nameless: "GetPod GetPodStatus", stray: "GetPod GetPodStatus"} {
		s := &scripted{pod: webPod("", "Running")}
		a := adapterOf(t, byUID{s}, Config{})
		if _, err := a.finder.find(t.Context(), ref, nil); err != nil || strings.Join(s.calls, " ") != want {
			t.Errorf("%v: %v after %v, want %s", ref, err, s.calls, want)
		}
	}
}

// The names of GetPods are those of pods if GetPod returns one of them.
func TestIsAStrayReturned(t *testing.T) {
	for name, c := range map[string]struct {
		*scripted
		want bool
	}{
		"a pod":               {&scripted{pod: webPod("", "Running")}, true},
		"nothing":             {&scripted{}, false},
		"an error":            {&scripted{podErr: errPod}, false},
		"a pod with an error": {&scripted{pod: webPod("", "Running"), podErr: errPod}, false},
	} {
		if got := adapterOf(t, c.scripted, Config{}).finder.returns(t.Context(), refWeb); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// A status of GetPodStatus counts more than that of the pod that GetPod has returned.
func TestFindHasTheNewestStatus(t *testing.T) {
	a := adapterOf(t, &scripted{pod: webPod("1", "Pending"), status: withStatus("Running")}, Config{})
	if st, err := a.finder.find(t.Context(), refWeb, nil); err != nil || st.Status.Phase != "Running" {
		t.Errorf("%s, %v", st.Status.Phase, err)
	}
	a = adapterOf(t, &scripted{pod: webPod("1", "Pending"), status: withStatus("Running"), statusErr: errStatus}, Config{})
	if st, err := a.finder.find(t.Context(), refWeb, nil); err != nil || st.Status.Phase != "Pending" {
		t.Errorf("a status with an error: %s, %v", st.Status.Phase, err)
	}
}

// Whose is an instance that has no UID, and whose name no pod of this node has?
func TestTheOwnerOfAStray(t *testing.T) {
	forbidden := apierrors.NewForbidden(corev1.Resource("pods"), "web", errors.New("a node's credentials"))
	get := apitest.Match{Verb: "get", Resource: "pods"}
	for name, c := range map[string]struct {
		pod    *corev1.Pod
		node   string
		faults []apitest.Fault
		want   string
	}{
		"no pod":                    {want: "nobody"},
		"a pod that runs":           {pod: webPod("1", "Running"), want: "1"},
		"a pod that has not begun":  {pod: webPod("1", ""), want: "nobody"},
		"a pod of another node":     {pod: webPod("1", "Running"), node: "another", want: "1"},
		"no answer":                 {pod: webPod("1", "Running"), faults: []apitest.Fault{{Match: get, Err: apitest.ErrConnRefused}}, want: "is there a pod default/web"},
		"as a node: no pod":         {faults: []apitest.Fault{{Match: get, Err: forbidden}}, want: "nobody"},
		"as a node: it runs":        {pod: webPod("1", "Running"), faults: []apitest.Fault{{Match: get, Err: forbidden}}, want: "1"},
		"as a node: it has not":     {pod: webPod("1", ""), faults: []apitest.Fault{{Match: get, Err: forbidden}}, want: "nobody"},
		"as a node: of another one": {pod: webPod("1", "Running"), node: "another", faults: []apitest.Fault{{Match: get, Err: forbidden}}, want: "nobody"},
		"as a node: no answer": {
			faults: []apitest.Fault{{Match: get, Err: forbidden}, {Match: apitest.Match{Verb: "list", Resource: "pods"}, Err: apitest.ErrConnRefused}},
			want:   "is there a pod default/web",
		},
	} {
		s := apitest.New(apitest.Options{})
		if c.pod != nil {
			if c.node != "" {
				c.pod.Spec.NodeName = c.node
			}
			s.Put(c.pod)
		}
		for _, fault := range c.faults {
			s.Inject(fault)
		}
		a := adapterOf(t, &scripted{}, Config{Client: s.Client(apitest.User{}).CoreV1()})
		owner, err := a.finder.ownerOf(t.Context(), stray)
		got := "nobody"
		switch {
		case err != nil:
			got = err.Error()
		case owner != nil:
			got = string(owner.UID)
		}
		if !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// Stop of an instance that turns out to be that of a pod calls nothing of the provider, and the
// instance is known as that pod's afterwards.
func TestStopOfAStrayThatHasAnOwner(t *testing.T) {
	s := apitest.New(apitest.Options{})
	owner := webPod("1", "Running")
	s.Put(owner)
	provider := &scripted{}
	a := adapterOf(t, provider, Config{Client: s.Client(apitest.User{}).CoreV1()})
	st, err := a.Stop(t.Context(), stray, podsync.StopOptions{})
	if err != nil || !st.Stopped || st.Ref != stray || len(provider.calls) > 0 {
		t.Errorf("%+v, %v, calls %v", st, err, provider.calls)
	}
	if got, _ := a.held.identify(webPod("", ""), a.held.holders(), nil); got != refWeb {
		t.Errorf("the instance is that of %v", got)
	}
}

// A round of List is quiet only if the round before has left nothing open.
func TestWhenGetPodsIsOutdated(t *testing.T) {
	known := webPod("1", "Running")
	for name, c := range map[string]struct {
		*scripted
		want bool
	}{
		"all is known":                    {&scripted{list: []*corev1.Pod{known}, pod: known, status: withStatus("Running")}, false},
		"GetPods fails":                   {&scripted{listErr: errList}, true},
		"a pod without a UID":             {&scripted{list: []*corev1.Pod{webPod("", "Running")}, pod: known}, true},
		"a pod that is left out fails":    {&scripted{podErr: errPod, list: []*corev1.Pod{{}}}, true},
		"a pod that is left out is there": {&scripted{pod: known, status: withStatus("Running")}, false},
		"one that is left out is absent":  {&scripted{podErr: errdefs.NotFound("no job")}, false},
	} {
		a := adapterOf(t, c.scripted, Config{})
		a.held.want(refWeb, known)
		a.finder.outdated.Store(true)
		_, _ = a.finder.list(t.Context())
		if got := a.finder.outdated.Load(); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// A pod that the list lacks and about which GetPod fails stays in the list if it may run: podsync would
// take it for lost.
func TestAPodAboutWhichGetPodFailsStaysInTheList(t *testing.T) {
	for name, c := range map[string]struct {
		api    corev1.PodPhase
		polled bool
		want   int
	}{
		"it was held":                  {"", true, 1},
		"it ran before this process":   {corev1.PodRunning, false, 1},
		"it was held, and has started": {corev1.PodRunning, true, 1},
		"it has not started":           {"", false, 0},
	} {
		a := adapterOf(t, &scripted{podErr: errPod, list: []*corev1.Pod{{}}}, Config{})
		a.held.want(refWeb, webPod("1", c.api))
		if c.polled {
			a.held.polled(refWeb, withStatus("Running"))
		}
		states, err := a.List(t.Context())
		if err != nil || len(states) != c.want {
			t.Errorf("%s: %v, %v", name, states, err)
		}
	}
}

// forgetful is a provider whose list is empty. GetPod returns an error that names the pod and its UID: the
// text broken for pods that it has, and the text unknown for others.
type forgetful struct {
	scripted
	broken, unknown string
	wait            chan struct{} // GetPod of a pod that it does not have waits for it; nil: not
	absent          int           // the calls about such a pod; guarded by mu
}

func (p *forgetful) GetPodByUID(_ context.Context, namespace, name string, uid types.UID) (*corev1.Pod, error) {
	p.did("GetPod")
	text := p.broken
	if name == absentName {
		p.mu.Lock()
		p.absent++
		p.mu.Unlock()
		if p.wait != nil {
			<-p.wait
		}
		text = p.unknown
	}
	return nil, fmt.Errorf("%s: %s/%s %s", text, namespace, name, uid)
}

func (p *forgetful) GetPodStatusByUID(context.Context, string, string, types.UID) (*corev1.PodStatus, error) {
	return nil, errStatus
}

// counts returns the calls of GetPod, and those about a pod that it does not have, and begins again.
func (p *forgetful) counts() (all, absent int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, call := range p.calls {
		if call == "GetPod" {
			all++
		}
	}
	absent = p.absent
	p.calls, p.absent = nil, 0
	return all, absent
}

// fortyPods lets the adapter know pods that run, in two namespaces.
func fortyPods(a *Adapter) (refs []podsync.Ref) {
	for i := range 40 {
		pod := webPod(types.UID(fmt.Sprint("uid-", i)), "Running")
		pod.Namespace, pod.Name = fmt.Sprint("space-", i%2), fmt.Sprint("pod-", i)
		ref := podsync.RefOf(pod)
		a.held.create(pod)
		a.held.created(ref)
		a.held.shown(ref, pod, true)
		refs = append(refs, ref)
	}
	return refs
}

// Many pods about which GetPod fails cost one question about a pod that cannot exist in each namespace and
// list.
func TestPodsShareTheQuestionAboutOneThatCannotExist(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &forgetful{broken: "the back end is away", unknown: "no such pod"}
		a := adapterOf(t, p, Config{})
		refs := fortyPods(a)
		for range 3 {
			states, err := a.List(t.Context())
			if err != nil || len(states) != len(refs) {
				t.Errorf("%d pods are listed, want %d (%v)", len(states), len(refs), err)
			}
			if all, absent := p.counts(); absent != 2 || all != len(refs)+2 {
				t.Errorf("%d calls of GetPod, %d of them about a pod that cannot exist, want %d and 2", all, absent, len(refs)+2)
			}
			time.Sleep(a.Relist())
		}
		p.broken = p.unknown // as after a restart of the provider
		if states, err := a.List(t.Context()); err != nil || len(states) != 0 {
			t.Errorf("%d pods are listed that the provider does not know (%v)", len(states), err)
		}
		if _, absent := p.counts(); absent != 2 {
			t.Errorf("%d calls about a pod that cannot exist, want 2", absent)
		}
	})
}

// Calls at the same time share the question, too. While it hangs, nothing is known, and later calls ask again.
func TestAQuestionThatHangsHoldsUpNoLaterOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &forgetful{broken: "no such pod", unknown: "no such pod", wait: make(chan struct{})}
		a := adapterOf(t, p, Config{})
		refs := fortyPods(a)
		ctx, cancel := context.WithCancel(t.Context())
		answers := make(chan error, len(refs))
		for _, ref := range refs {
			go func() {
				_, err := a.finder.find(ctx, ref, nil)
				answers <- err
			}()
		}
		synctest.Wait()
		if all, absent := p.counts(); absent != 2 || all != len(refs)+2 || len(answers) > 0 {
			t.Errorf("%d calls of GetPod, %d of them about a pod that cannot exist, %d answers, want %d, 2, none", all, absent, len(answers), len(refs)+2)
		}
		cancel()
		synctest.Wait()
		for range len(refs) - 2 { // those that wait for the question of another one
			if err := <-answers; errors.Is(err, podsync.ErrNotFound) {
				t.Errorf("a pod counts as gone, although nothing has answered: %v", err)
			}
		}
		hung := p.wait
		p.wait = nil
		time.Sleep(absentLasts)
		for _, ref := range refs {
			if _, err := a.finder.find(t.Context(), ref, nil); !errors.Is(err, podsync.ErrNotFound) {
				t.Errorf("%v: %v, want not found", ref, err)
			}
		}
		if _, absent := p.counts(); absent != 2 {
			t.Errorf("%d calls about a pod that cannot exist, want 2", absent)
		}
		close(hung)
	})
}

// The statuses of twenty pods are asked for sixteen at a time, and a round waits for ten seconds.
func TestPollsHavePlacesAndPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slowStatuses{open: make(chan struct{}), hung: make(chan struct{}, 100)}
		a := adapterOf(t, s, Config{})
		var refs []podsync.Ref
		for i := range 20 {
			refs = append(refs, podsync.Ref{Namespace: "default", Name: fmt.Sprint("pod-", i), UID: "1"})
		}
		begun := time.Now()
		answered := a.finder.poll(t.Context(), t.Context(), refs, begun)
		if took := time.Since(begun); took != pollPatience || len(s.hung) != pollPlaces || answered {
			t.Errorf("the round took %v with %d calls, answered %v", took, len(s.hung), answered)
		}
		close(s.open)
		a.finder.polls.wg.Wait()
		late := slices.DeleteFunc(slices.Clone(refs), func(ref podsync.Ref) bool { return a.held.state(ref).Status.Phase != "" })
		if len(late) != 20-pollPlaces {
			t.Errorf("%d pods have no status", len(late))
		}
		if !a.finder.poll(t.Context(), t.Context(), late, time.Now().Add(1)) || len(s.hung) != 20 {
			t.Errorf("the next round did not ask about the pods that had no place: %d calls", len(s.hung))
		}
	})
}

// A List that comes after the end of Watch begins no call that nothing would wait for.
func TestNoPollsAfterTheEnd(t *testing.T) {
	s := &scripted{status: withStatus("Running")}
	a := adapterOf(t, s, Config{})
	a.finder.polls.wait()
	for range 2 { // a pod that was not asked about does not stay marked
		if a.finder.poll(t.Context(), t.Context(), []podsync.Ref{refWeb}, time.Now().Add(time.Hour)) || a.finder.poll(t.Context(), t.Context(), nil, time.Now()) {
			t.Error("a round without a call is enough")
		}
	}
	if len(s.calls) > 0 || a.held.pods[refWeb].polling {
		t.Errorf("calls %v, polling %v", s.calls, a.held.pods[refWeb].polling)
	}
}

// slowStatuses is a provider whose statuses come when open is closed.
type slowStatuses struct {
	stub
	open, hung chan struct{}
}

func (s *slowStatuses) GetPodStatus(context.Context, string, string) (*corev1.PodStatus, error) {
	s.hung <- struct{}{}
	<-s.open
	return withStatus("Running"), nil
}

// A round of polls has succeeded if there was a status, and no answer without one.
func TestWhenPollsAreEnough(t *testing.T) {
	for name, c := range map[string]struct {
		*scripted
		pods int
		want bool
	}{
		"no pod":      {scripted: &scripted{}},
		"a status":    {scripted: &scripted{status: withStatus("Running")}, pods: 2, want: true},
		"no status":   {scripted: &scripted{}, pods: 1},
		"it fails":    {scripted: &scripted{status: withStatus("Running"), statusErr: errStatus}, pods: 1},
		"other error": {scripted: &scripted{statusErr: errStatus}, pods: 1},
	} {
		a := adapterOf(t, c.scripted, Config{})
		refs := []podsync.Ref{refWeb, {Namespace: "default", Name: "web", UID: "2"}}[:c.pods]
		if got := a.finder.poll(t.Context(), t.Context(), refs, time.Now().Add(time.Hour)); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// The provider does not show a pod after a call about it: the state is what is remembered.
func TestCallsWithoutALaterAnswer(t *testing.T) {
	s := &creating{scripted: scripted{podErr: errdefs.NotFound("no job")}}
	a := adapterOf(t, s, Config{})
	pod := webPod("1", "")
	for range 2 { // the second time it is fresh
		st, err := a.Start(t.Context(), pod)
		if err != nil || st.Ref != refWeb || st.NodeName != "vk" || s.created != 1 {
			t.Errorf("%s, %v; created %d times", summary(st), err, s.created)
		}
	}
	s.podErr = errPod
	if st, err := a.Update(t.Context(), pod); err != nil || st.Ref != refWeb {
		t.Errorf("Update: %s, %v", summary(st), err)
	}
	s.podErr = nil
	s.pod = webPod("1", "Running")
	if st, err := a.Update(t.Context(), pod); err != nil || st.Status.Phase != "Running" {
		t.Errorf("Update: %s, %v", summary(st), err)
	}
	s.after = func() { s.podErr, s.listErr = errPod, errList }
	st, err := a.Stop(t.Context(), refWeb, podsync.StopOptions{Pod: pod, Grace: 7 * time.Second})
	if err != nil || st.Ref != refWeb || st.Stopped || *s.grace != 7 {
		t.Errorf("Stop: %s, %v, grace %d", summary(st), err, *s.grace)
	}
	s.podErr, s.after = nil, nil
	if st, err = a.Stop(t.Context(), refWeb, podsync.StopOptions{Pod: pod}); err != nil || st.Stopped || *s.grace != 0 {
		t.Errorf("Stop: %s, %v, grace %d", summary(st), err, *s.grace)
	}
	s.after = func() { s.pod, s.podErr = nil, errdefs.NotFound("no job") }
	if st, err = a.Stop(t.Context(), refWeb, podsync.StopOptions{}); err != nil || !st.Stopped {
		t.Errorf("Stop: %s, %v", summary(st), err)
	}
}

// creating is scripted with CreatePod, UpdatePod and DeletePod.
type creating struct {
	scripted
	created int
	grace   *int64
	after   func() // after DeletePod
}

func (c *creating) CreatePod(context.Context, *corev1.Pod) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.created++
	return nil
}

func (*creating) UpdatePod(context.Context, *corev1.Pod) error { return nil }

func (c *creating) DeletePod(_ context.Context, pod *corev1.Pod) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.grace = pod.DeletionGracePeriodSeconds
	if c.after != nil {
		c.after()
	}
	return nil
}

// deleting counts the calls of DeletePod.
type deleting struct {
	*scripted
	deletes int
}

func (d *deleting) DeletePod(context.Context, *corev1.Pod) error {
	d.deletes++
	return errPod
}

// Stop calls DeletePod although GetPod can't tell, but not if the name is that of another pod by now.
func TestStopOfAPodThatGetPodCannotFind(t *testing.T) {
	mine, other := webPod("1", "Running"), webPod("2", "Running")
	for name, c := range map[string]struct {
		before  func(h *holdings)
		deletes int
	}{
		"it ran":                   {func(h *holdings) { h.shown(refWeb, mine, true) }, 1},
		"another pod has its name": {func(h *holdings) { h.shown(refWeb, mine, true); h.create(other); h.created(podsync.RefOf(other)) }, 0},
	} {
		d := &deleting{scripted: &scripted{podErr: errPod, noPodErr: errMine}}
		a := adapterOf(t, d, Config{})
		a.held.create(mine)
		a.held.created(refWeb)
		c.before(a.held)
		if _, err := a.Stop(t.Context(), refWeb, podsync.StopOptions{Pod: mine}); !errors.Is(err, errPod) {
			t.Errorf("%s: Stop = %v, want the error of the provider", name, err)
		}
		if d.deletes != c.deletes {
			t.Errorf("%s: %d calls of DeletePod, want %d", name, d.deletes, c.deletes)
		}
	}
}

// mute is a provider whose GetPod does not answer before wait is closed.
type mute struct {
	scripted
	wait chan struct{}
}

func (p *mute) GetPod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	<-p.wait
	return p.scripted.GetPod(ctx, namespace, name)
}

// Each List asks about a stray. The calls must not pile up while none of them returns.
func TestAStrayIsAskedAboutOnceAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &mute{wait: make(chan struct{})}
		p.pod = webPod("", "Running")
		a := adapterOf(t, p, Config{})
		began := time.Now()
		for range 5 {
			if a.finder.returns(t.Context(), stray) {
				t.Error("returned, although GetPod has not")
			}
			a.held.others(nil) // the end of a List
		}
		if took := time.Since(began); took != pollPatience {
			t.Errorf("five Lists took %v", took)
		}
		close(p.wait)
		synctest.Wait()
		if n := len(p.calls); n != 1 {
			t.Errorf("%d calls of GetPod", n)
		}
		if !a.finder.returns(t.Context(), stray) {
			t.Error("not returned, although GetPod answers")
		}
	})
}
