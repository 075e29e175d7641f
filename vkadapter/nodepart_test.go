// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package vkadapter

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/virtual-kubelet/virtual-kubelet/node"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/nodestatus"
)

// What a NodeProvider leaves empty stays as it was.
func TestTheSetterSetsWhatIsReported(t *testing.T) {
	base := func() *corev1.Node {
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"mine": "1"}},
			Status: corev1.NodeStatus{
				Capacity: corev1.ResourceList{"pods": resource.MustParse("1")}, Allocatable: corev1.ResourceList{"pods": resource.MustParse("1")},
				Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}},
				DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: 10250}},
				NodeInfo:        corev1.NodeSystemInfo{Architecture: "arm64"}, Images: []corev1.ContainerImage{{Names: []string{"mine"}}},
			},
		}
	}
	a := adapterOf(t, &scripted{}, Config{})
	for name, c := range map[string]struct {
		change func(n *corev1.Node) // what is reported, and what the node becomes
		before func(n *corev1.Node)
		differ bool
	}{
		"nothing":     {change: func(*corev1.Node) {}},
		"labels":      {change: func(n *corev1.Node) { n.Labels = map[string]string{"mine": "2"} }},
		"capacity":    {change: func(n *corev1.Node) { n.Status.Capacity = corev1.ResourceList{"cpu": resource.MustParse("2")} }},
		"allocatable": {change: func(n *corev1.Node) { n.Status.Allocatable = corev1.ResourceList{"cpu": resource.MustParse("2")} }},
		"addresses":   {change: func(n *corev1.Node) { n.Status.Addresses = []corev1.NodeAddress{{Address: "192.0.2.2"}} }},
		"node info":   {change: func(n *corev1.Node) { n.Status.NodeInfo = corev1.NodeSystemInfo{KubeletVersion: "v1"} }},
		"images":      {change: func(n *corev1.Node) { n.Status.Images = []corev1.ContainerImage{{Names: []string{"theirs"}}} }},
		"a port beside that of the server": {
			change: func(n *corev1.Node) { n.Status.DaemonEndpoints.KubeletEndpoint.Port = 1 }, differ: true,
		},
		"a port": {
			change: func(n *corev1.Node) { n.Status.DaemonEndpoints.KubeletEndpoint.Port = 1 },
			before: func(n *corev1.Node) { n.Status.DaemonEndpoints.KubeletEndpoint.Port = 0 },
		},
	} {
		reported, got := &corev1.Node{}, base()
		c.change(reported)
		if c.before != nil {
			c.before(got)
		}
		want := got.DeepCopy()
		if !c.differ {
			c.change(want)
		}
		a.nodeNotified(t.Context(), reported)
		if err := a.Setter(t.Context(), got); err != nil || got.String() != want.String() {
			t.Errorf("%s: %v, want %v (%v)", name, got, want, err)
		}
	}
}

// Conditions without a status are those of a template. Ready is for HealthCheck.
func TestConditionsOfANodeProvider(t *testing.T) {
	a := adapterOf(t, &scripted{}, Config{})
	node := &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: "Kept", Status: "True"}}}}
	a.nodeNotified(t.Context(), &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: "True"}, {Type: "Kept"}, {Type: "Empty"}, {Type: "Remote", Status: "False"},
	}}})
	if err := a.Setter(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	got := ""
	for _, c := range node.Status.Conditions {
		got += string(c.Type) + "=" + string(c.Status) + " "
	}
	if got != "Kept=True Remote=False " {
		t.Errorf("conditions %s", got)
	}
}

// A disk that the provider does not report is not said to be well.
func TestTheDiskOfABackendIsUnknown(t *testing.T) {
	for _, reported := range []corev1.ConditionStatus{"", corev1.ConditionFalse} {
		a := adapterOf(t, &scripted{}, Config{})
		a.nodeNotified(t.Context(), &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeDiskPressure, Status: reported}}}})
		node := &corev1.Node{}
		for _, setter := range []nodestatus.Setter{diskUnknown, a.Setter} {
			if err := setter(t.Context(), node); err != nil {
				t.Fatal(err)
			}
		}
		want := cmp.Or(reported, corev1.ConditionUnknown)
		if got := node.Status.Conditions; len(got) != 1 || got[0].Status != want {
			t.Errorf("%q: conditions %v, want %s", reported, got, want)
		}
	}
}

type pinged struct{ err error }

func (p pinged) Ping(context.Context) error                              { return p.err }
func (pinged) NotifyNodeStatus(context.Context, func(node *corev1.Node)) {}

func TestHealthFromANodeProvider(t *testing.T) {
	ready := func(status corev1.ConditionStatus) *corev1.Node {
		return &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: "Remote", Status: "False", Reason: "Other"}, {Type: corev1.NodeReady, Status: status, Reason: "Why", Message: "what"},
		}}}
	}
	for name, c := range map[string]struct {
		provider node.NodeProvider
		node     *corev1.Node
		want     string // the reason
	}{
		"no NodeProvider":           {node: ready("False")},
		"no report":                 {provider: pinged{}},
		"no Ready":                  {provider: pinged{}, node: &corev1.Node{}},
		"Ready without a status":    {provider: pinged{}, node: ready("")},
		"Ready":                     {provider: pinged{}, node: ready("True")},
		"not Ready":                 {provider: pinged{}, node: ready("False"), want: "Why"},
		"nobody knows":              {provider: pinged{}, node: ready("Unknown"), want: "Why"},
		"Ping fails, and all is ok": {provider: pinged{errors.New("what")}, node: ready("True"), want: ReasonPingFailed},
	} {
		changed := 0
		a := adapterOf(t, &scripted{}, Config{NodeProvider: c.provider, NodeChanged: func() { changed++ }})
		a.nodeNotified(t.Context(), c.node)
		if c.node != nil != (changed == 1) {
			t.Errorf("%s: NodeChanged was called %d times", name, changed)
		}
		err := a.HealthCheck(t.Context(), "vk")
		var notReady *nodestatus.NotReadyError
		if !errors.As(err, &notReady) {
			notReady = &nodestatus.NotReadyError{}
		}
		if notReady.Reason != c.want || (err != nil) != (c.want != "") || err != nil && notReady.Message != "what" {
			t.Errorf("%s: %v, want the reason %q", name, err, c.want)
		}
	}
}

// A panic in NodeChanged is the program's, not the provider's: the goroutine of the provider
// goes on, the Node is kept, and the next one is reported.
func TestAPanicInNodeChangedIsContained(t *testing.T) {
	logger := ktesting.NewLogger(ktesting.NopTL{}, ktesting.NewConfig(ktesting.BufferLogs(true)))
	ctx := klog.NewContext(t.Context(), logger)
	calls := 0
	a := adapterOf(t, &scripted{}, Config{NodeProvider: pinged{}, NodeChanged: func() { calls++; panic("boom") }})
	for _, name := range []string{"one", "two"} {
		a.nodeNotified(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"name": name}}})
		if got := a.Node().Labels["name"]; got != name {
			t.Errorf("the Node is %q, want %q", got, name)
		}
	}
	if calls != 2 {
		t.Errorf("NodeChanged was called %d times", calls)
	}
	text := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
	for _, want := range []string{"panic in NodeChanged: boom", "TestAPanicInNodeChangedIsContained"} { // with the stack
		if !strings.Contains(text, want) {
			t.Errorf("the log lacks %q:\n%s", want, text)
		}
	}
}

// The taints of the node are those that are reported and those of others.
func TestTaintsOfANodeProvider(t *testing.T) {
	taints := func(words string) (list []corev1.Taint) {
		if words == "none" {
			return []corev1.Taint{}
		}
		for _, word := range strings.Fields(words) {
			key, value, _ := strings.Cut(word, "=")
			list = append(list, corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffectNoSchedule})
		}
		return list
	}
	words := func(list []corev1.Taint) string {
		var out []string
		for _, taint := range list {
			out = append(out, strings.TrimSuffix(taint.Key+"="+taint.Value, "="))
		}
		return strings.Join(out, " ")
	}
	for name, c := range map[string]struct {
		had, registered, reported string
		template                  string
		stale                     bool // the informer's node is old
		want                      string
		patches                   int
		done                      bool
		after                     string // had
	}{
		"no report about taints":  {had: "a", registered: "a b", want: "a b", done: true, after: "a"},
		"the same":                {had: "a", registered: "b a", reported: "a", want: "b a", done: true, after: "a"},
		"a new one":               {had: "a", registered: "a b", reported: "a c", want: "a c b", patches: 1, done: true, after: "a c"},
		"a new value":             {had: "a=1", registered: "a=1 b", reported: "a=2", want: "a=2 b", patches: 1, done: true, after: "a=2"},
		"one goes":                {had: "a c", registered: "a b c", reported: "a", want: "a b", patches: 1, done: true, after: "a"},
		"all go":                  {had: "a", registered: "a b", reported: "none", want: "b", patches: 1, done: true, after: ""},
		"one of the template":     {template: "c", had: "a", registered: "a c", reported: "a", want: "a", patches: 1, done: true, after: "a"},
		"– that is reported":      {template: "a", registered: "a b", reported: "a", want: "a b", done: true, after: "a"},
		"an administrator's, too": {had: "a", registered: "a b c", reported: "a c", want: "a b c", done: true, after: "a c"},
		"– and a new one":         {had: "a", registered: "a b c", reported: "a c d", want: "a c d b", patches: 1, done: true, after: "a c d"},
		"somebody removed it":     {had: "a", registered: "b", reported: "a", want: "a b", patches: 1, done: true, after: "a"},
		"a conflict":              {had: "a", registered: "a", reported: "a c", stale: true, want: "a", patches: 1, after: "a"},
	} {
		s := apitest.New(apitest.Options{})
		s.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "vk"}, Spec: corev1.NodeSpec{Taints: taints(c.registered)}})
		registered := apitest.Get[*corev1.Node](s, "", "vk")
		if c.stale {
			apitest.Edit(s, "", "vk", func(n *corev1.Node) { n.Labels = map[string]string{"changed": "1"} })
		}
		writer := &tainter{nodes: s.Client(apitest.User{}).CoreV1(), template: taints(c.template), had: taints(c.had)}
		done := writer.write(t.Context(), registered, &corev1.Node{Spec: corev1.NodeSpec{Taints: taints(c.reported)}})
		patches := len(s.Requests(apitest.Match{Verb: "patch"}))
		if got := words(apitest.Get[*corev1.Node](s, "", "vk").Spec.Taints); got != c.want || patches != c.patches || done != c.done || words(writer.had) != c.after {
			t.Errorf("%s: taints %q with %d patches, done %v, had %q", name, got, patches, done, words(writer.had))
		}
	}
	writer := &tainter{}
	if writer.write(t.Context(), nil, &corev1.Node{Spec: corev1.NodeSpec{Taints: taints("a")}}) || writer.write(t.Context(), nil, nil) || !writer.write(t.Context(), &corev1.Node{}, nil) {
		t.Error("a Node that is not registered must be tried again, and one without a report must not")
	}
}

// Taints of one key and different effects are two.
func TestTaintsHaveAnEffect(t *testing.T) {
	a := corev1.Taint{Key: "a", Effect: corev1.TaintEffectNoSchedule}
	b := corev1.Taint{Key: "a", Effect: corev1.TaintEffectNoExecute}
	if sameTaints([]corev1.Taint{a}, []corev1.Taint{b}) || hasTaint([]corev1.Taint{a}, b) || !sameTaints([]corev1.Taint{a, b}, []corev1.Taint{b, a}) ||
		sameTaints([]corev1.Taint{a, b}, []corev1.Taint{a}) {
		t.Error("an effect does not count")
	}
}
