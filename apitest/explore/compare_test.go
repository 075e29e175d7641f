// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/apitest/internal/plan"
)

// ends returns the differences between a server with x and one with y. Each also has a
// Node, so that UIDs differ between them.
func ends(t *testing.T, ignore []string, x, y []metav1.Object) []string {
	t.Helper()
	var got []map[string]any
	for i, objects := range [][]metav1.Object{x, y} {
		s := apitest.New(apitest.Options{})
		for range i {
			s.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "x"}})
			apitest.Remove[*corev1.ConfigMap](s, "default", "x")
		}
		node := s.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}).(*corev1.Node)
		for _, o := range objects {
			for j, ref := range o.GetOwnerReferences() {
				if ref.Name == "n" {
					refs := o.GetOwnerReferences()
					refs[j].UID = node.UID
					o.SetOwnerReferences(refs)
				}
			}
			switch o := o.(type) {
			case *corev1.ConfigMap:
				s.Put(o)
			case *corev1.Pod:
				s.Put(o)
			case *coordinationv1.Lease:
				s.Put(o)
			case *appsv1.ReplicaSet:
				s.Put(o)
			case *corev1.Service:
				s.Put(o)
			}
		}
		got = append(got, normalized(s.Objects(), ignore, nil))
	}
	return differences(got[0], got[1])
}

func TestDifferences(t *testing.T) {
	now, later := metav1.NewMicroTime(time.Unix(1e9, 0)), metav1.NewMicroTime(time.Unix(2e9, 0))
	config := func(name string, data map[string]string, change func(*corev1.ConfigMap)) []metav1.Object {
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Data: data}
		if change != nil {
			change(m)
		}
		return []metav1.Object{m}
	}
	lease := func(at metav1.MicroTime, holder string, transitions int32) []metav1.Object {
		return []metav1.Object{&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "l"},
			Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, RenewTime: &at, LeaseTransitions: &transitions}}}
	}
	pod := func(types ...corev1.PodConditionType) []metav1.Object {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"}}
		for _, typ := range types {
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: typ, Status: corev1.ConditionTrue})
		}
		return []metav1.Object{p}
	}
	owned := func(uid string) func(*corev1.ConfigMap) {
		return func(m *corev1.ConfigMap) {
			m.OwnerReferences = []metav1.OwnerReference{{Kind: "Node", Name: "n"}}
			if uid != "" {
				m.OwnerReferences = []metav1.OwnerReference{{Kind: "Node", Name: "other", UID: "00000000-1111-2222-3333-444444444444"}}
			}
		}
	}
	generated := func(names ...string) (all []metav1.Object) {
		for _, n := range names {
			all = append(all, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "g-" + n, GenerateName: "g-"}, Data: map[string]string{"me": "g-" + n}})
		}
		return all
	}
	// A job with a generated name, and pods with names that are generated from that name.
	job := func(name string, pods ...string) (all []metav1.Object) {
		keys := map[string]string{}
		for i, n := range append([]string{""}, pods...) {
			m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, GenerateName: "job-"}}
			if n != "" {
				m.Name, m.GenerateName = name+"-"+n, name+"-"
				keys[m.Name] = strconv.Itoa(i)
			}
			all = append(all, m)
		}
		return append(all, config("pods", keys, nil)...)
	}
	replicas := func(n int32, owners ...metav1.OwnerReference) []metav1.Object {
		labels := map[string]string{"app": "r"}
		return []metav1.Object{&appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "r", OwnerReferences: owners}, Spec: appsv1.ReplicaSetSpec{
			Replicas: &n, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}},
		}}}
	}
	deployment := metav1.OwnerReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "d", UID: "u", Controller: new(true)}
	service := func(ip string, port int32) []metav1.Object {
		return []metav1.Object{&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "s"}, Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeNodePort, ClusterIP: ip, ClusterIPs: []string{ip}, Ports: []corev1.ServicePort{{Port: 80, NodePort: port}},
		}}}
	}
	uids := func(numbers ...int) map[string]string {
		keys := map[string]string{}
		for i, n := range numbers {
			keys[fmt.Sprintf("00000000-1111-2222-3333-%012d", n)] = strconv.Itoa(i)
		}
		return keys
	}
	for name, c := range map[string]struct {
		x, y   []metav1.Object
		ignore []string
		want   string // a part of the first difference; empty means none
	}{
		"the same":                             {config("a", map[string]string{"k": "v"}, nil), config("a", map[string]string{"k": "v"}, nil), nil, ""},
		"a value":                              {config("a", map[string]string{"k": "v"}, nil), config("a", map[string]string{"k": "w"}, nil), nil, `ConfigMap default/a .data.k: "w", in the reference "v"`},
		"a key more":                           {config("a", nil, nil), config("a", map[string]string{"k": "w"}, nil), nil, ".data"},
		"missing":                              {config("a", nil, nil), nil, nil, "does not exist"},
		"one more":                             {nil, config("a", nil, nil), nil, "exists, but not in the reference"},
		"ignored":                              {config("a", map[string]string{"x.y/k": "v"}, nil), config("a", map[string]string{"x.y/k": "w"}, nil), []string{"ConfigMap.data.x.y/k"}, ""},
		"ignored everywhere":                   {config("a", map[string]string{"k": "v"}, nil), config("a", map[string]string{"k": "w"}, nil), []string{"*.data.k"}, ""},
		"another's ignored":                    {config("a", map[string]string{"k": "v"}, nil), config("a", map[string]string{"k": "w"}, nil), []string{"Pod.data.k"}, ".data.k"},
		"an ignored kind":                      {config("a", nil, nil), pod("A"), []string{"ConfigMap", "Pod"}, ""},
		"a time in a text":                     {config("a", map[string]string{"k": "at 2001-01-01T00:00:00Z"}, nil), config("a", map[string]string{"k": "at 2002-02-02T00:00:00.5Z"}, nil), nil, ""},
		"the same owner":                       {config("a", nil, owned("")), config("a", nil, owned("")), nil, ""},
		"another owner":                        {config("a", nil, owned("")), config("a", nil, owned("x")), nil, ".metadata.ownerReferences"},
		"generated names":                      {generated("abc", "def"), generated("xyz", "uvw"), nil, ""},
		"one generated more":                   {generated("abc"), generated("xyz", "uvw"), nil, "ConfigMap default/g-* (2 of them): exists, but not in the reference"},
		"names generated from generated names": {job("job-abc", "a", "b", "c", "d", "e", "f", "g", "h"), job("job-xyz", "s", "t", "u", "v", "w", "x", "y", "z"), nil, ""},
		"UIDs as keys":                         {config("a", uids(1, 2, 3, 4, 5, 6), nil), config("a", uids(9, 8, 7, 6, 5, 4), nil), nil, ""},
		"one UID more":                         {config("a", uids(1), nil), config("a", uids(1, 2), nil), nil, "ConfigMap default/a .data.UID (2 of them)"},
		"lease times":                          {lease(now, "a", 1), lease(later, "a", 7), nil, ""},
		"lease holder":                         {lease(now, "a", 1), lease(now, "b", 1), nil, ".spec.holderIdentity"},
		"order of a map":                       {pod("A", "B"), pod("B", "A"), nil, ""},
		"a former revision":                    {replicas(0, deployment), nil, nil, ""},
		"a current revision":                   {replicas(1, deployment), replicas(0, deployment), nil, "ReplicaSet default/r: does not exist"},
		"a ReplicaSet of its own":              {replicas(0), nil, nil, "ReplicaSet default/r: does not exist"},
		"allocated values":                     {service("10.96.0.10", 30001), service("10.96.0.11", 30002), nil, ""},
		"a headless Service":                   {service("10.96.0.10", 30001), service("None", 30001), nil, "Service default/s .spec.clusterIP: \"None\""},
		"a condition less":                     {pod("A", "B"), pod("B"), nil, ".status.conditions"},
	} {
		t.Run(name, func(t *testing.T) {
			got := ends(t, c.ignore, c.x, c.y)
			if c.want == "" && len(got) > 0 || c.want != "" && (len(got) == 0 || !strings.Contains(got[0], c.want)) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestObservedGenerationIsComparedWithGeneration(t *testing.T) {
	for observed, want := range map[int64]string{3: "current", 2: "outdated"} {
		n := &normalizer{generation: 3}
		got := n.value("Deployment", "", map[string]any{"status": map[string]any{"observedGeneration": observed}})
		if s := string(encode(got)); s != `{"status":{"observedGeneration":"`+want+`"}}` {
			t.Errorf("%d is %s", observed, s)
		}
	}
}

func TestNoise(t *testing.T) {
	a := map[string]any{"Pod a/b": map[string]any{"x": "1", "same": "s", "list": []any{map[string]any{"y": "1"}, "z"}}}
	b := map[string]any{"Pod a/b": map[string]any{"x": "2", "same": "s", "list": []any{map[string]any{"y": "2"}, "z"}}}
	if got := noise(a, b); !slices.Equal(got, []string{"Pod.list.y", "Pod.x"}) {
		t.Errorf("got %q", got)
	}
	if got := noise(a, a); len(got) > 0 {
		t.Errorf("got %q for the same", got)
	}
}

// Objects of a group and elements of a list may come in another order if a field that differs
// decides about it. Then only that field is noise.
func TestUneven(t *testing.T) {
	pod := func(hash, role string) map[string]any { return map[string]any{"hash": hash, "role": role} }
	end := func(first, second map[string]any, list ...any) map[string]any {
		return map[string]any{"Pod a/g-* (1 of them)": first, "Pod a/g-* (2 of them)": second, "Node n": map[string]any{"list": list}}
	}
	a := end(pod("1", "leader"), pod("2", "follower"), pod("1", "x"), pod("2", "y"))
	b := end(pod("3", "follower"), pod("4", "leader"), pod("3", "y"), pod("4", "x"))
	if got := uneven(a, b); !slices.Equal(got, []string{"Node.list.hash", "Pod.hash"}) {
		t.Errorf("got %q", got)
	}
	if got := uneven(a, end(pod("1", "follower"), pod("2", "follower"), pod("1", "x"), pod("2", "y"))); !slices.Equal(got, []string{"Pod.role"}) {
		t.Errorf("got %q", got)
	}
	b = end(pod("1", "leader"), pod("2", "follower"), pod("2", "y"), pod("1", "x"))
	if got := uneven(a, b); len(got) > 0 {
		t.Errorf("got %q for another order", got)
	}
	b["Pod a/g-* (3 of them)"] = pod("5", "follower")
	if got := uneven(a, b); len(got) > 0 {
		t.Errorf("got %q for another number of objects, which is no noise", got)
	}
}

// A finding has one cause for each program and field, and a panic for each function.
func TestCauseOf(t *testing.T) {
	differs := func(n string) string {
		return "the end differs from the reference:\nPod default/p" + n + " .status.phase: none"
	}
	one := causeOf("409 @ a: update pods default/p1 #1", differs("1"))
	if again := causeOf("slow @ a: update pods default/p2 #7", differs("2")); again != one {
		t.Errorf("%q, %q", one, again)
	}
	if other := causeOf("409 @ b: update pods default/p1 #1", differs("1")); other == one {
		t.Errorf("two programs: %q", other)
	}
	if a, b := causeOf("409 @ a: update pods default/p1 #1", "panic of a: x"), causeOf("409 @ b: update pods default/p1 #1", "panic of a: x"); a != b {
		t.Errorf("%q, %q", a, b)
	}
}

// The story of a takeover says what the fault assumes, unless the program elects a leader.
func TestTakeoverAssumes(t *testing.T) {
	l := &lab{ref: outcome{journal: []*entry{
		{program: "one", text: "create pods default/a"}, {program: "one", text: "get leases default/one"},
		{program: "two", text: "update leases default/two"},
	}}}
	for line, want := range map[string][]string{
		"takeover @ one: create pods default/a #1":    {"one"},
		"takeover @ two: create pods default/a #1":    nil,
		"crash after @ one: create pods default/a #1": nil,
	} {
		p, err := plan.Parse(line)
		if err != nil {
			t.Fatal(err)
		}
		if got := l.assumed(p); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
}

// The story of a long run says how much it leaves out, and shows what follows each note: a
// pause, for example, ends long after the fault.
func TestStoryShowsWhatFollowsANote(t *testing.T) {
	var run []*entry
	add := func(n int, text string) {
		for i := range n {
			run = append(run, &entry{program: "p", text: fmt.Sprintf("%s %d", text, i)})
		}
	}
	add(20, "get")
	run = append(run, &entry{text: "p continues"})
	add(2, "delete")
	add(20, "list")
	run = append(run, &entry{text: "the end"})
	out := &outcome{journal: run}
	story := (&lab{}).story(nil, out, 10)
	for _, part := range []string{"p: get 9", "... 10 requests", "-- p continues", "p: delete 1", "... 14 requests", "-- the end"} {
		if !strings.Contains(story, part) {
			t.Errorf("the story lacks %q:\n%s", part, story)
		}
	}
	if strings.Contains(story, "get 10") || strings.Contains(story, "list 6") {
		t.Errorf("the story is too long:\n%s", story)
	}
}

// A line that is too long loses a part of the name, and not the answer.
func TestStoryShowsTheAnswerOfALongRequest(t *testing.T) {
	name := "update widgets.example.com/status default/a-name-that-is-longer-than-a-column"
	for _, c := range []struct {
		e    entry
		want string
	}{
		{entry{program: "operator", text: name, result: "-> 409"}, "       0s operator: update widgets.example.com/status default/a-... -> 409"},
		{entry{program: "operator", text: name, result: "-> 409", times: 12}, "       0s operator: update widgets.example.com/status... -> 409 (12 times)"},
		{entry{program: "operator", text: "get pods a", result: "-> 200", times: 12}, "       0s operator: get pods a -> 200 (12 times)"},
		{entry{program: "operator", text: "get pods a", result: "-> " + strings.Repeat("x", 60)}, "       0s operator: get pods a -> " + strings.Repeat("x", 37) + "..."},
		{entry{text: "FAULT: " + name}, "       0s -- FAULT: " + name},
	} {
		if got := column([]entry{c.e}, 0); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

func TestCause(t *testing.T) {
	stack := func(address, function string) string {
		return "panic of p: a nil pointer\ngoroutine 7 [running]:\nruntime/debug.Stack()\n\t/src/stack.go:26 +0x5e\n" +
			"panic({0x1?, 0x2?})\n\t/src/panic.go:783 +0x132\nruntime.sigpanic()\n\t/src/signal.go:917\n" +
			"example.com/op.(*Reconciler)." + function + "(0xc000" + address + ", {0x0})\n\t/op/op.go:12"
	}
	differs := "the end differs from the reference:\n"
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{stack("1f", "Reconcile"), stack("2a", "Reconcile"), true},
		{stack("1f", "Reconcile"), stack("1f", "finalize"), false},
		{differs + "Pod a/b .status.phase: \"x\", in the reference \"y\"\nPod c", differs + "Pod a/b .status.phase: none, in the reference \"y\"", true},
		{differs + "Pod a/b .status.phase: \"x\"", differs + "Pod a/b .spec.nodeName: \"x\"", false},
		{"812 requests in 2m0s", "90 requests in 2m0s", true},
	} {
		if got := cause(c.a) == cause(c.b); got != c.same {
			t.Errorf("the same cause is %v, want %v: %q and %q", got, c.same, cause(c.a), cause(c.b))
		}
	}
}
