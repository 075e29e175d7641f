// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apitest_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/kubewright/kubewright/apitest"
)

// TestEvictionBudgets evicts pods against budgets in all states.
func TestEvictionBudgets(t *testing.T) {
	const ready, unready = corev1.ConditionTrue, corev1.ConditionFalse
	running := corev1.PodRunning
	for _, test := range []struct {
		name    string
		phase   corev1.PodPhase
		ready   corev1.ConditionStatus
		deleted bool
		status  policyv1.PodDisruptionBudgetStatus
		policy  policyv1.UnhealthyPodEvictionPolicyType
		budgets int
		why     string // of the refusal
		left    int32
	}{
		{name: "no budget", phase: running, ready: ready},
		{name: "a disruption is allowed", phase: running, ready: ready, budgets: 1, status: policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: 2}, left: 1},
		{name: "none is allowed", phase: running, ready: ready, budgets: 1, status: policyv1.PodDisruptionBudgetStatus{DesiredHealthy: 3, CurrentHealthy: 2}, why: "needs 3 healthy pods and has 2"},
		{name: "the controller has not looked", phase: running, ready: ready, budgets: 1, status: policyv1.PodDisruptionBudgetStatus{ObservedGeneration: -1, DisruptionsAllowed: 2}, why: "still being processed", left: 2},
		{name: "negative", phase: running, ready: ready, budgets: 1, status: policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: -1}, why: "is negative", left: -1},
		{name: "two budgets", phase: running, ready: ready, budgets: 2, why: "more than one"},
		{name: "pending", phase: corev1.PodPending, budgets: 1},
		{name: "ended", phase: corev1.PodFailed, budgets: 1},
		{name: "deleted", phase: running, ready: ready, deleted: true, budgets: 1},
		{name: "not ready, and enough others are", phase: running, ready: unready, budgets: 1, status: policyv1.PodDisruptionBudgetStatus{DesiredHealthy: 1, CurrentHealthy: 1}},
		{name: "not ready, like too many others", phase: running, ready: unready, budgets: 1, status: policyv1.PodDisruptionBudgetStatus{DesiredHealthy: 2, CurrentHealthy: 1}, why: "needs 2"},
		{name: "not ready, and none is wanted", phase: running, ready: unready, budgets: 1, why: "needs 0"},
		{name: "not ready, always allowed", phase: running, ready: unready, budgets: 1, policy: policyv1.AlwaysAllow, status: policyv1.PodDisruptionBudgetStatus{DesiredHealthy: 2, CurrentHealthy: 1}},
	} {
		t.Run(test.name, bubble(func(t *testing.T) { // the client repeats a 429
			s := apitest.New(apitest.Options{})
			p := podOn("p", "n")
			p.Labels = map[string]string{"a": "b"}
			p.Status = corev1.PodStatus{Phase: test.phase, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: test.ready}}}
			if test.deleted {
				p.DeletionTimestamp, p.DeletionGracePeriodSeconds = ptr.To(metav1.Now()), ptr.To[int64](30)
			}
			s.Put(p)
			for i := range test.budgets {
				b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("b", i)}, Status: test.status,
					Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr.To(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: p.Labels}}}
				if test.policy != "" {
					b.Spec.UnhealthyPodEvictionPolicy = ptr.To(test.policy)
				}
				b.Status.ObservedGeneration++
				s.Put(b)
			}
			s.Put(&policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "other"},
				Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "c"}}}})
			evict := func(opts metav1.DeleteOptions) error {
				return s.Client(apitest.User{}).CoreV1().Pods("default").EvictV1(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"}, DeleteOptions: &opts})
			}
			if err := evict(metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}); (err != nil) != (test.why != "") {
				t.Errorf("dry run: %v", err)
			}
			err := evict(metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
			if (err != nil) != (test.why != "") {
				t.Fatalf("eviction: %v, want %q", err, test.why)
			}
			if status, ok := err.(apierrors.APIStatus); ok {
				text := fmt.Sprint(err, status.Status().Details)
				if !strings.Contains(text, test.why) {
					t.Errorf("refused with %s, want %s", text, test.why)
				}
				if strings.HasPrefix(test.why, "needs") && !apierrors.IsTooManyRequests(err) {
					t.Errorf("not 429: %v", err)
				}
			}
			if gone := apitest.Get[*corev1.Pod](s, "default", "p") == nil; gone == (test.why != "") {
				t.Errorf("gone: %v", gone)
			}
			if test.budgets != 1 {
				return
			}
			b := apitest.Get[*policyv1.PodDisruptionBudget](s, "default", "b0")
			if b.Status.DisruptionsAllowed != test.left {
				t.Errorf("%d disruptions left, want %d", b.Status.DisruptionsAllowed, test.left)
			}
			if _, ok := b.Status.DisruptedPods["p"]; ok != (test.left > 0 && test.why == "") {
				t.Errorf("disrupted pods: %v", b.Status.DisruptedPods)
			}
		}))
	}
}

// TestListPast lists and pages states that are no longer the newest.
func TestListPast(t *testing.T) {
	s := apitest.New(apitest.Options{History: 8})
	for _, name := range []string{"a", "b", "c"} {
		s.Put(configMap(name, ""))
	}
	rv := s.ResourceVersion()
	apitest.Remove[*corev1.ConfigMap](s, "default", "b")
	s.Put(configMap("aa", ""))
	now := s.ResourceVersion()
	maps := s.Client(apitest.User{}).CoreV1().ConfigMaps("default")
	list := func(opts metav1.ListOptions) (string, string, error) {
		l, err := maps.List(t.Context(), opts)
		if err != nil {
			return "", "", err
		}
		out := l.ResourceVersion
		for _, cm := range l.Items {
			out += " " + cm.Name
		}
		return out, l.Continue, nil
	}
	for _, test := range []struct {
		rv    string
		match metav1.ResourceVersionMatch
		limit int64
		want  string
	}{
		{rv, metav1.ResourceVersionMatchExact, 0, rv + " a b c"},
		{rv, metav1.ResourceVersionMatchExact, 2, rv + " a b"},
		{rv, "", 2, rv + " a b"},
		{rv, "", 0, now + " a aa c"},
		{rv, metav1.ResourceVersionMatchNotOlderThan, 0, now + " a aa c"},
		{rv, metav1.ResourceVersionMatchNotOlderThan, 2, now + " a aa"},
		{"0", "", 2, now + " a aa c"},
		{"", "", 2, now + " a aa"},
	} {
		got, token, err := list(metav1.ListOptions{ResourceVersion: test.rv, ResourceVersionMatch: test.match, Limit: test.limit})
		if err != nil || got != test.want {
			t.Errorf("%+v: %s, %v", test, got, err)
		}
		if token == "" {
			continue
		}
		version, _, _ := strings.Cut(test.want, " ")
		if got, _, err := list(metav1.ListOptions{Continue: token, Limit: 2}); err != nil || got != version+" c" {
			t.Errorf("the second page of %+v: %s, %v", test, got, err)
		}
		if _, _, err := list(metav1.ListOptions{Continue: token, ResourceVersion: rv}); !apierrors.IsBadRequest(err) {
			t.Errorf("a page with a resourceVersion: %v", err)
		}
	}
	_, token, err := list(metav1.ListOptions{Limit: 1})
	must(t, err)
	for i := range 20 {
		s.Put(configMap("d", fmt.Sprint(i)))
	}
	if _, _, err := list(metav1.ListOptions{ResourceVersion: rv, ResourceVersionMatch: metav1.ResourceVersionMatchExact}); !apierrors.IsResourceExpired(err) {
		t.Errorf("a state that is forgotten: %v", err)
	}
	if _, _, err := list(metav1.ListOptions{Continue: token}); !apierrors.IsResourceExpired(err) {
		t.Errorf("a page of a state that is forgotten: %v", err)
	}
}

// TestDeployment requires that annotations count for the generation, and that the status
// subresource keeps the labels.
func TestDeployment(t *testing.T) {
	s := apitest.New(apitest.Options{})
	d := s.Put(&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "d", Labels: map[string]string{"l": "1"}}, Spec: deploymentSpec(1)}).(*appsv1.Deployment)
	deployments := s.Client(apitest.User{}).AppsV1().Deployments("default")
	for _, step := range []struct {
		change      func()
		subresource []string
		generation  int64
		label       string
	}{
		{func() { d.Annotations = map[string]string{"a": "1"} }, nil, 2, "1"},
		{func() { d.Labels = map[string]string{"l": "2"} }, nil, 2, "2"},
		{func() { d.Labels = map[string]string{"l": "3"}; d.Status.Replicas = 1 }, []string{"status"}, 2, "2"},
	} {
		step.change()
		var err error
		if step.subresource == nil {
			d, err = deployments.Update(t.Context(), d, metav1.UpdateOptions{})
		} else {
			d, err = deployments.UpdateStatus(t.Context(), d, metav1.UpdateOptions{})
		}
		must(t, err)
		if d.Generation != step.generation || d.Labels["l"] != step.label {
			t.Errorf("generation %d, labels %v; want %d, %s", d.Generation, d.Labels, step.generation, step.label)
		}
	}
}

// TestSecrets requires the values that each type needs.
func TestSecrets(t *testing.T) {
	secrets := apitest.New(apitest.Options{}).Client(apitest.User{}).CoreV1().Secrets("default")
	for i, test := range []struct {
		typ     corev1.SecretType
		data    map[string]string
		account string
		ok      bool
	}{
		{corev1.SecretTypeTLS, nil, "", false},
		{corev1.SecretTypeTLS, map[string]string{"tls.crt": "x"}, "", false},
		{corev1.SecretTypeTLS, map[string]string{"tls.crt": "", "tls.key": ""}, "", true},
		{corev1.SecretTypeDockercfg, nil, "", false},
		{corev1.SecretTypeDockerConfigJson, map[string]string{".dockerconfigjson": "{"}, "", false},
		{corev1.SecretTypeDockerConfigJson, map[string]string{".dockerconfigjson": "{}"}, "", true},
		{corev1.SecretTypeBasicAuth, nil, "", false},
		{corev1.SecretTypeBasicAuth, map[string]string{"password": ""}, "", true},
		{corev1.SecretTypeSSHAuth, map[string]string{"ssh-privatekey": ""}, "", false},
		{corev1.SecretTypeSSHAuth, map[string]string{"ssh-privatekey": "x"}, "", true},
		{corev1.SecretTypeServiceAccountToken, nil, "", false},
		{corev1.SecretTypeServiceAccountToken, nil, "sa", true},
		{corev1.SecretTypeOpaque, map[string]string{"k": strings.Repeat("x", 1<<20)}, "", true},
		{corev1.SecretTypeOpaque, map[string]string{"k": strings.Repeat("x", 1<<20), "l": "x"}, "", false},
	} {
		s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("s", i)}, Type: test.typ, StringData: test.data}
		if test.account != "" {
			s.Annotations = map[string]string{corev1.ServiceAccountNameKey: test.account}
		}
		if _, err := secrets.Create(t.Context(), s, metav1.CreateOptions{}); (err == nil) != test.ok || err != nil && !apierrors.IsInvalid(err) {
			t.Errorf("%d, %s: %v", i, test.typ, err)
		}
	}
}

// TestSizes requires the limits of a request and of etcd.
func TestSizes(t *testing.T) {
	maps := apitest.New(apitest.Options{}).Client(apitest.User{}).CoreV1().Pods("default")
	for size, check := range map[int]func(error) bool{
		1 << 20: func(err error) bool { return err == nil },
		2 << 20: func(err error) bool {
			return err != nil && strings.Contains(err.Error(), "trying to send message larger")
		},
		3 << 20: apierrors.IsRequestEntityTooLargeError,
	} {
		p := podOn(fmt.Sprint("p", size), "n")
		p.Spec.Containers[0].Args = []string{strings.Repeat("x", size)}
		if _, err := maps.Create(t.Context(), p, metav1.CreateOptions{}); !check(err) {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
}

// TestPriorities requires the admission plugin Priority.
func TestPriorities(t *testing.T) {
	s := apitest.New(apitest.Options{})
	ctx := t.Context()
	classes, pods := s.Client(apitest.User{}).SchedulingV1().PriorityClasses(), s.Client(apitest.User{}).CoreV1().Pods("default")
	class := func(name string, value int32, d bool) error {
		_, err := classes.Create(ctx, &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value, GlobalDefault: d}, metav1.CreateOptions{})
		return err
	}
	n := 0
	priority := func(class string, asked *int32) string {
		n++
		p := podOn(fmt.Sprint("p", n), "")
		p.Spec.PriorityClassName, p.Spec.Priority = class, asked
		p, err := pods.Create(ctx, p, metav1.CreateOptions{})
		if err != nil {
			if !apierrors.IsForbidden(err) {
				t.Error(err)
			}
			return "forbidden"
		}
		return fmt.Sprint(*p.Spec.Priority, " ", *p.Spec.PreemptionPolicy, " ", p.Spec.PriorityClassName)
	}
	expect := func(got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	must(t, class("high", 1000, false))
	expect(priority("", nil), "0 PreemptLowerPriority ")
	expect(priority("high", nil), "1000 PreemptLowerPriority high")
	expect(priority("high", ptr.To[int32](1000)), "1000 PreemptLowerPriority high")
	expect(priority("high", ptr.To[int32](5)), "forbidden")
	expect(priority("", ptr.To[int32](5)), "forbidden")
	expect(priority("absent", nil), "forbidden")
	expect(priority("system-node-critical", nil), "2000001000 PreemptLowerPriority system-node-critical")
	must(t, class("usual", 7, true))
	expect(priority("", nil), "7 PreemptLowerPriority usual")
	if err := class("usual-2", 8, true); !apierrors.IsForbidden(err) {
		t.Errorf("a second default: %v", err)
	}
	for name, value := range map[string]int32{"over": 1_000_000_001, "system-mine": 1} {
		if err := class(name, value, false); !apierrors.IsInvalid(err) {
			t.Errorf("class %s: %v", name, err)
		}
	}
	if _, err := classes.Patch(ctx, "high", types.MergePatchType, []byte(`{"value":1}`), metav1.PatchOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("a changed value: %v", err)
	}
}

// TestValidPod sends a pod whose fields the real server accepts, and reads the defaults.
// internal/conformance has the pods that it refuses.
func TestValidPod(t *testing.T) {
	pods := apitest.New(apitest.Options{}).Client(apitest.User{}).CoreV1().Pods("default")
	p := podOn("p", "n")
	ref := &corev1.ObjectFieldSelector{FieldPath: "metadata.labels['a']"}
	probe := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromString("web")}}}
	claim := "claim"
	p.Spec.HostNetwork = true
	p.Spec.Hostname, p.Spec.ServiceAccountName = "h", "sa"
	p.Spec.NodeSelector = map[string]string{"example.com/a": "b"}
	p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}, {Key: "k", Value: "v", Effect: corev1.TaintEffectNoExecute, TolerationSeconds: ptr.To[int64](1)}}
	p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "example.com/ready"}}
	p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: ptr.To[int64](0), Sysctls: []corev1.Sysctl{{Name: "net.core.somaxconn", Value: "1"}}}
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "r", ResourceClaimName: &claim}}
	p.Spec.Volumes = []corev1.Volume{
		{Name: "none"},
		{Name: "host", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/a/..b"}}},
		{Name: "secret", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}},
		{Name: "projected", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}},
			{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{Path: "l", FieldRef: ref}}}},
		}}}},
	}
	c := &p.Spec.Containers[0]
	c.VolumeMounts = []corev1.VolumeMount{{Name: "none", MountPath: "/m", SubPath: "x"}}
	c.Ports = []corev1.ContainerPort{{ContainerPort: 80, Name: "web"}, {ContainerPort: 443}}
	c.Env = []corev1.EnvVar{{Name: "a.b-C", Value: "x"}, {Name: "B", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.podIP"}}}}
	c.Resources = corev1.ResourceRequirements{Limits: corev1.ResourceList{"example.com/gpu": resource.MustParse("2"), "cpu": resource.MustParse("1")}, Claims: []corev1.ResourceClaim{{Name: "r"}}}
	c.LivenessProbe, c.ReadinessProbe = probe, &corev1.Probe{ProbeHandler: probe.ProbeHandler, SuccessThreshold: 2}
	c.Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"x"}}}}
	c.SecurityContext = &corev1.SecurityContext{AllowPrivilegeEscalation: ptr.To(false)}
	p.Spec.InitContainers = []corev1.Container{{Name: "sidecar", Image: "i", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways), StartupProbe: probe}}
	got, err := pods.Create(t.Context(), p, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	vs, container := got.Spec.Volumes, got.Spec.Containers[0]
	want := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/", Port: intstr.FromString("web"), Scheme: corev1.URISchemeHTTP}},
		TimeoutSeconds: 1, PeriodSeconds: 10, SuccessThreshold: 1, FailureThreshold: 3}
	switch token := vs[3].Projected.Sources[0].ServiceAccountToken; {
	case vs[0].EmptyDir == nil, *vs[1].HostPath.Type != "", *vs[2].Secret.DefaultMode != 0o644, *vs[3].Projected.DefaultMode != 0o644, *token.ExpirationSeconds != 3600,
		vs[3].Projected.Sources[1].DownwardAPI.Items[0].FieldRef.APIVersion != "v1":
		t.Errorf("volumes %v", vs)
	case container.Ports[1].HostPort != 443, container.Env[1].ValueFrom.FieldRef.APIVersion != "v1", !equality.Semantic.DeepEqual(container.LivenessProbe, want),
		container.ReadinessProbe.SuccessThreshold != 2:
		t.Errorf("container %v", container)
	}
}

// TestScale reads and changes the replicas of a Deployment and of a custom resource.
func TestScale(t *testing.T) {
	s := apitest.New(apitest.Options{})
	deployments := s.Client(apitest.User{}).AppsV1().Deployments("default")
	ctx := t.Context()
	d, err := deployments.Create(ctx, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "d"}, Spec: deploymentSpec(1)}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	apitest.Edit(s, "default", "d", func(d *appsv1.Deployment) { d.Status.Replicas = 3 })
	scale, err := deployments.GetScale(ctx, "d", metav1.GetOptions{})
	if err != nil || scale.Spec.Replicas != 1 || scale.Status.Replicas != 3 || scale.Status.Selector != "a=b" || scale.UID != d.UID {
		t.Fatalf("%+v, %v", scale, err)
	}
	stale := scale.DeepCopy()
	scale.Spec.Replicas = 2
	if scale, err = deployments.UpdateScale(ctx, "d", scale, metav1.UpdateOptions{}); err != nil || scale.Spec.Replicas != 2 || scale.ResourceVersion == stale.ResourceVersion {
		t.Fatalf("%+v, %v", scale, err)
	}
	if _, err := deployments.UpdateScale(ctx, "d", stale, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("a stale scale: %v", err)
	}
	for patch, ok := range map[string]bool{`{"spec":{"replicas":5}}`: true, `{"spec":{"replicas":-1}}`: false, `{"metadata":{"name":"e"}}`: false} {
		if _, err := deployments.Patch(ctx, "d", types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "scale"); (err == nil) != ok {
			t.Errorf("%s: %v", patch, err)
		}
	}
	now := apitest.Get[*appsv1.Deployment](s, "default", "d")
	if *now.Spec.Replicas != 5 || now.Status.Replicas != 3 || now.Generation != d.Generation+2 {
		t.Errorf("%+v", now)
	}
	if _, err := deployments.GetScale(ctx, "absent", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("absent: %v", err)
	}

	rest := s.Client(apitest.User{}).RESTClient()
	send := func(verb, path, body string) *autoscalingv1.Scale {
		t.Helper()
		out := &autoscalingv1.Scale{}
		if err := rest.Verb(verb).AbsPath(path).SetHeader("Content-Type", "application/json").Body([]byte(body)).Do(ctx).Into(out); err != nil && verb != "POST" {
			t.Fatal(err)
		}
		return out
	}
	send("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", `{"metadata":{"name":"sets.example.com"},"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"sets","kind":"Set"},
		"versions":[{"name":"v1","served":true,"storage":true,"subresources":{"status":{},"scale":{"specReplicasPath":".spec.n","statusReplicasPath":".status.n","labelSelectorPath":".status.sel"}},
		"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`)
	const sets = "/apis/example.com/v1/namespaces/default/sets"
	send("POST", sets, `{"apiVersion":"example.com/v1","kind":"Set","metadata":{"name":"s"},"spec":{"n":4}}`)
	got := send("GET", sets+"/s/scale", "")
	got.Spec.Replicas++
	if got = send("PUT", sets+"/s/scale", fmt.Sprintf(`{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"s","namespace":"default"},"spec":{"replicas":%d}}`, got.Spec.Replicas)); got.Spec.Replicas != 5 {
		t.Errorf("%+v", got)
	}
}

// TestTokens requests tokens and reviews them.
func TestTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := apitest.New(apitest.Options{})
		ctx := t.Context()
		account := s.Put(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "sa"}}).(*corev1.ServiceAccount)
		p := podOn("p", "n")
		p.Spec.ServiceAccountName = "sa"
		p = s.Put(p).(*corev1.Pod)
		other := s.Put(podOn("other", "n2")).(*corev1.Pod)
		request := func(as apitest.User, spec authenticationv1.TokenRequestSpec) (string, error) {
			tr, err := s.Client(as).CoreV1().ServiceAccounts("default").CreateToken(ctx, "sa", &authenticationv1.TokenRequest{Spec: spec}, metav1.CreateOptions{})
			if err != nil {
				return "", err
			}
			return tr.Status.Token, nil
		}
		review := func(token string, audiences ...string) authenticationv1.TokenReviewStatus {
			t.Helper()
			tr, err := s.Client(apitest.User{}).AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: audiences}}, metav1.CreateOptions{})
			must(t, err)
			if tr.Status.Authenticated != (tr.Status.Error == "") {
				t.Errorf("authenticated %v with %q", tr.Status.Authenticated, tr.Status.Error)
			}
			return tr.Status
		}
		ref := func(p *corev1.Pod) *authenticationv1.BoundObjectReference {
			return &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: p.Name, UID: p.UID}
		}
		plain, err := request(apitest.User{}, authenticationv1.TokenRequestSpec{})
		must(t, err)
		if st := review(plain); !st.Authenticated || st.User.Username != "system:serviceaccount:default:sa" || st.User.UID != string(account.UID) || len(st.User.Groups) != 3 || len(st.Audiences) != 1 {
			t.Errorf("the user of a token: %+v", st)
		}
		for _, no := range []string{plain + "x", "a.b.c", "a"} {
			if review(no).Authenticated {
				t.Errorf("%s is authenticated", no)
			}
		}
		ab, err := request(apitest.User{}, authenticationv1.TokenRequestSpec{Audiences: []string{"a", "b"}, ExpirationSeconds: ptr.To[int64](600)})
		must(t, err)
		if st := review(ab, "b", "c"); !st.Authenticated || !slices.Equal(st.Audiences, []string{"b"}) {
			t.Errorf("two audiences of which one fits: %+v", st)
		}
		if review(ab).Authenticated || review(ab, "c").Authenticated {
			t.Error("authenticated for another audience")
		}
		bound, err := request(apitest.NodeUser("n"), authenticationv1.TokenRequestSpec{BoundObjectRef: ref(p)})
		must(t, err)
		if st := review(bound); !slices.Equal(st.User.Extra["authentication.kubernetes.io/pod-uid"], authenticationv1.ExtraValue{string(p.UID)}) || !slices.Equal(st.User.Extra["authentication.kubernetes.io/node-name"], authenticationv1.ExtraValue{"n"}) {
			t.Errorf("the user of a bound token: %+v", st)
		}
		for name, test := range map[string]struct {
			as    apitest.User
			spec  authenticationv1.TokenRequestSpec
			check func(error) bool
		}{
			"too short":               {apitest.User{}, authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](599)}, apierrors.IsInvalid},
			"too long":                {apitest.User{}, authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](1<<32 + 1)}, apierrors.IsInvalid},
			"another pod's account":   {apitest.User{}, authenticationv1.TokenRequestSpec{BoundObjectRef: ref(other)}, apierrors.IsBadRequest},
			"a pod that is not there": {apitest.User{}, authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: "absent"}}, apierrors.IsNotFound},
			"another UID":             {apitest.User{}, authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "u"}}, apierrors.IsConflict},
			"a node without a pod":    {apitest.NodeUser("n"), authenticationv1.TokenRequestSpec{}, apierrors.IsForbidden},
			"a node without a UID":    {apitest.NodeUser("n"), authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: "p"}}, apierrors.IsForbidden},
			"a node with another's":   {apitest.NodeUser("n"), authenticationv1.TokenRequestSpec{BoundObjectRef: ref(other)}, apierrors.IsForbidden},
			"a node without the pod":  {apitest.NodeUser("n3"), authenticationv1.TokenRequestSpec{BoundObjectRef: ref(p)}, apierrors.IsForbidden},
		} {
			if _, err := request(test.as, test.spec); !test.check(err) {
				t.Errorf("%s: %v", name, err)
			}
		}
		time.Sleep(599 * time.Second)
		if !review(ab, "a").Authenticated {
			t.Error("not authenticated until the token expires")
		}
		time.Sleep(time.Second)
		if review(ab, "a").Authenticated {
			t.Error("authenticated after the token expired")
		}
		apitest.Remove[*corev1.Pod](s, "default", "p")
		if review(bound).Authenticated || !review(plain).Authenticated {
			t.Error("a token does not end with its pod")
		}
		apitest.Remove[*corev1.ServiceAccount](s, "default", "sa")
		s.Put(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "sa"}})
		if review(plain).Authenticated {
			t.Error("a token does not end with its account")
		}
		self, err := s.Client(apitest.User{Name: "alice", Groups: []string{"devs"}}).AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		if err != nil || self.Status.UserInfo.Username != "alice" || !slices.Equal(self.Status.UserInfo.Groups, []string{"devs", "system:authenticated"}) {
			t.Errorf("self: %+v, %v", self, err)
		}
	})
}

// TestManagedFields requires exact owners without an apply.
func TestManagedFields(t *testing.T) {
	s := apitest.New(apitest.Options{ManagedFields: true})
	ctx := t.Context()
	nodes := s.Client(apitest.User{}).CoreV1().Nodes()
	_, err := nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"l": "1"}}}, metav1.CreateOptions{FieldManager: "registrar"})
	must(t, err)
	_, err = nodes.Patch(ctx, "n", types.StrategicMergePatchType, []byte(`{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`), metav1.PatchOptions{FieldManager: "reporter"}, "status")
	must(t, err)
	n, err := nodes.Patch(ctx, "n", types.MergePatchType, []byte(`{"metadata":{"labels":{"m":"1"}}}`), metav1.PatchOptions{FieldManager: "labeller"})
	must(t, err)
	n.Labels["l"] = "2"
	_, err = nodes.Update(ctx, n, metav1.UpdateOptions{FieldManager: "updater"})
	must(t, err)
	got := map[string]string{}
	for _, e := range apitest.Get[*corev1.Node](s, "", "n").ManagedFields {
		got[e.Manager+e.Subresource] = e.FieldsV1.GetRawString()
	}
	for manager, want := range map[string]string{
		"reporterstatus": `{"f:status":{"f:conditions":{".":{},"k:{\"type\":\"Ready\"}":{".":{},"f:lastHeartbeatTime":{},"f:lastTransitionTime":{},"f:status":{},"f:type":{}}}}}`,
		"labeller":       `{"f:metadata":{"f:labels":{"f:m":{}}}}`,
		"updater":        `{"f:metadata":{"f:labels":{"f:l":{}}}}`,
	} {
		if got[manager] != want {
			t.Errorf("%s has %s, want %s", manager, got[manager], want)
		}
	}
	if strings.Contains(got["registrar"], "f:l\"") {
		t.Errorf("registrar still has the label: %s", got["registrar"])
	}
}
