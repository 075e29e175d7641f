// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podruntime_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/podsync/podruntime"
)

// fakeDrivers counts for how many calls of Prepare each claim is prepared, by driver and
// name.
type fakeDrivers struct {
	prepared map[string]int
	byUID    bool // by driver and UID
	devices  []podruntime.ClaimDevice
	fail     error
}

func (d *fakeDrivers) key(driver string, c podruntime.ClaimReference) string {
	if d.byUID {
		return driver + "/" + string(c.UID)
	}
	return driver + "/" + c.Name
}

func (d *fakeDrivers) Prepare(_ context.Context, driver string, c podruntime.ClaimReference) ([]podruntime.ClaimDevice, error) {
	if d.fail != nil {
		return nil, d.fail
	}
	d.prepared[d.key(driver, c)]++
	return d.devices, nil
}

func (d *fakeDrivers) Unprepare(_ context.Context, driver string, c podruntime.ClaimReference) error {
	if d.fail == nil {
		delete(d.prepared, d.key(driver, c))
	}
	return d.fail
}

// newClaims returns Claims with an API server that has an allocated claim for the pods
// one and two, of two drivers.
func newClaims(t *testing.T) (*podruntime.Claims, *fakeDrivers, *apitest.Server) {
	t.Helper()
	api, drivers := apitest.New(apitest.Options{}), &fakeDrivers{prepared: map[string]int{}}
	api.Put(allocatedClaim("claim", "one", "two"))
	return &podruntime.Claims{Dir: filepath.Join(t.TempDir(), "claims"), Client: api.Client(apitest.User{}).ResourceV1(), Drivers: drivers}, drivers, api
}

func allocatedClaim(name string, pods ...types.UID) *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	c.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{
		{Request: "r", Driver: "a.example.com", Pool: "n1", Device: "d"}, {Request: "r", Driver: "b.example.com", Pool: "n1", Device: "d"},
	}}}
	for _, uid := range pods {
		c.Status.ReservedFor = append(c.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: string(uid), UID: uid})
	}
	return c
}

// claimPod returns a pod with the claim as devices, and a container that has it.
func claimPod(uid types.UID) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: string(uid), UID: uid}, Spec: corev1.PodSpec{
		ResourceClaims: []corev1.PodResourceClaim{{Name: "devices", ResourceClaimName: new("claim")}},
		Containers:     []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "devices"}}}}},
	}}
}

func TestASharedClaimIsPreparedUntilItsLastPodIsReleased(t *testing.T) {
	claims, drivers, _ := newClaims(t)
	for _, uid := range []types.UID{"one", "two"} {
		if err := claims.Prepare(t.Context(), claimPod(uid)); err != nil {
			t.Fatal(err)
		}
	}
	if err := claims.Release(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	if len(drivers.prepared) != 2 {
		t.Errorf("prepared are %v, and pod two has the claim of both drivers", drivers.prepared)
	}
	drivers.fail = errors.New("busy")
	if err := claims.Release(t.Context(), "two"); !errors.Is(err, drivers.fail) {
		t.Errorf("Release = %v, want the error of the driver", err)
	}
	drivers.fail, drivers.prepared = nil, map[string]int{"a.example.com/claim": 1, "b.example.com/claim": 1}
	// A process that starts later knows the claims from disk.
	later := &podruntime.Claims{Dir: claims.Dir, Client: claims.Client, Drivers: drivers}
	for range 2 { // the second time there is nothing to do
		if err := later.Release(t.Context(), "two"); err != nil {
			t.Fatal(err)
		}
	}
	if len(drivers.prepared) != 0 {
		t.Errorf("%v are still prepared", drivers.prepared)
	}
}

// A claim with the name of one that was deleted is another claim. The old one is unprepared before
// the pod has the new one, or with the pod, but not while another pod has it.
func TestAClaimThatWasReplacedIsUnpreparedToo(t *testing.T) {
	claims, drivers, api := newClaims(t)
	busy := errors.New("busy")
	devices := func(uid types.UID) {
		t.Helper()
		pod := claimPod(uid)
		if _, err := claims.Devices(pod, &pod.Spec.Containers[0]); err != nil {
			t.Error(err)
		}
	}
	expect := func(what string, err error, want error, prepared ...string) {
		t.Helper()
		slices.Sort(prepared)
		if got := slices.Sorted(maps.Keys(drivers.prepared)); !errors.Is(err, want) || !slices.Equal(got, prepared) {
			t.Errorf("%s = %v, and prepared are %q, want %v and %q", what, err, got, want, prepared)
		}
	}
	replace := func(uid types.UID) {
		claim := allocatedClaim("claim", "one", "two")
		claim.UID = uid
		if err := claims.Client.ResourceClaims("default").Delete(t.Context(), "claim", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		api.Put(claim)
	}
	replace("first")
	drivers.byUID = true
	expect("Prepare", claims.Prepare(t.Context(), claimPod("one")), nil, "a.example.com/first", "b.example.com/first")
	replace("second")
	drivers.fail = busy
	expect("Prepare", claims.Prepare(t.Context(), claimPod("one")), busy, "a.example.com/first", "b.example.com/first")
	drivers.fail = nil
	expect("Prepare", claims.Prepare(t.Context(), claimPod("one")), nil, "a.example.com/second", "b.example.com/second")
	devices("one")
	expect("Prepare", claims.Prepare(t.Context(), claimPod("two")), nil, "a.example.com/second", "b.example.com/second")
	replace("third")
	both := []string{"a.example.com/second", "b.example.com/second", "a.example.com/third", "b.example.com/third"}
	expect("Prepare", claims.Prepare(t.Context(), claimPod("one")), nil, both...)
	expect("Release", claims.Release(t.Context(), "one"), nil, "a.example.com/second", "b.example.com/second")
	replace("fourth")
	expect("Release", claims.Release(t.Context(), "two"), nil)
}

// What other pods have is read from their records, wherever these are.
func TestASharedClaimStaysInADirectoryWithAnyName(t *testing.T) {
	claims, drivers, _ := newClaims(t)
	claims.Dir = filepath.Join(filepath.Dir(claims.Dir), "node[1]", "claims")
	for _, uid := range []types.UID{"one", "two"} {
		if err := claims.Prepare(t.Context(), claimPod(uid)); err != nil {
			t.Fatal(err)
		}
	}
	// What a process that was killed was about to write is no record.
	if err := os.WriteFile(filepath.Join(claims.Dir, "three.json.tmp"), []byte(`[{"Cla`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := claims.Release(t.Context(), "one"); err != nil || len(drivers.prepared) != 2 {
		t.Errorf("Release = %v, prepared are %v, and pod two has the claim of both drivers", err, drivers.prepared)
	}
	if err := claims.Release(t.Context(), "two"); err != nil || len(drivers.prepared) != 0 {
		t.Errorf("Release = %v, and %v are still prepared", err, drivers.prepared)
	}
}

// A hanging is drivers of which one does not answer.
type hanging struct {
	*fakeDrivers
	claim  string
	answer chan struct{}
}

func (d hanging) Prepare(ctx context.Context, driver string, c podruntime.ClaimReference) ([]podruntime.ClaimDevice, error) {
	if c.Name == d.claim {
		<-d.answer
	}
	return d.fakeDrivers.Prepare(ctx, driver, c)
}

func TestADriverThatHangsHoldsUpItsClaimsOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		claims, drivers, api := newClaims(t)
		api.Put(allocatedClaim("other", "three"))
		answer := make(chan struct{})
		claims.Drivers = hanging{drivers, "claim", answer}
		first := make(chan error, 1)
		go func() { first <- claims.Prepare(t.Context(), claimPod("one")) }()
		synctest.Wait()

		other := claimPod("three")
		other.Spec.ResourceClaims[0].ResourceClaimName = new("other")
		if err := errors.Join(claims.Prepare(t.Context(), other), claims.Release(t.Context(), "three"), claims.Release(t.Context(), "none")); err != nil {
			t.Error(err)
		}
		// The claim itself is not unprepared for one pod while it is prepared for another.
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := claims.Release(ctx, "one"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Release = %v, while Prepare of the same claim goes on", err)
		}
		second := make(chan error, 1)
		go func() { second <- claims.Prepare(t.Context(), claimPod("two")) }()
		synctest.Wait()
		if len(second) != 0 {
			t.Error("two calls about one claim at a time")
		}
		close(answer)
		if err := errors.Join(<-first, <-second); err != nil {
			t.Error(err)
		}
		if drivers.prepared["a.example.com/claim"] != 2 {
			t.Errorf("prepared: %v", drivers.prepared)
		}
		if err := errors.Join(claims.Release(t.Context(), "one"), claims.Release(t.Context(), "two")); err != nil || len(drivers.prepared) != 0 {
			t.Errorf("Release = %v, and %v are still prepared", err, drivers.prepared)
		}
	})
}

// Two pods have the same two claims in another order.
func TestPodsWithSeveralClaimsDoNotWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		claims, drivers, api := newClaims(t)
		api.Put(allocatedClaim("other", "one", "two"))
		both := func(uid types.UID, names ...string) *corev1.Pod {
			pod := claimPod(uid)
			pod.Spec.ResourceClaims = nil
			for _, name := range names {
				pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, corev1.PodResourceClaim{Name: name, ResourceClaimName: new(name)})
			}
			return pod
		}
		for _, blocked := range []string{"claim", "other"} {
			for range 20 {
				answer, done := make(chan struct{}), make(chan error, 3)
				claims.Drivers = hanging{drivers, blocked, answer}
				prepare := func(pod *corev1.Pod) {
					go func() { done <- claims.Prepare(t.Context(), pod) }()
					synctest.Wait()
				}
				prepare(both("one", blocked))
				// One that gives up lets go of the claims that it has.
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				if err := claims.Prepare(ctx, both("two", "claim", "other")); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("Prepare = %v", err)
				}
				cancel()
				prepare(both("one", "claim", "other"))
				prepare(both("two", "other", "claim"))
				close(answer)
				if err := errors.Join(<-done, <-done, <-done); err != nil {
					t.Error(err)
				}
			}
		}
	})
}

func TestAClaimIsReleasedAlthoughItsPreparationFailed(t *testing.T) {
	claims, drivers, _ := newClaims(t)
	drivers.fail = errors.New("not yet")
	pod := claimPod("one")
	if err := claims.Prepare(t.Context(), pod); !errors.Is(err, drivers.fail) {
		t.Fatalf("Prepare = %v, want the error of the driver", err)
	}
	if _, err := claims.Devices(pod, &pod.Spec.Containers[0]); err == nil {
		t.Error("a container has devices that are not prepared")
	}
	// The driver may have prepared them before its answer was lost.
	drivers.fail, drivers.prepared = nil, map[string]int{"a.example.com/claim": 1, "b.example.com/claim": 1}
	if err := claims.Release(t.Context(), "one"); err != nil || len(drivers.prepared) != 0 {
		t.Errorf("Release = %v, and %v are still prepared", err, drivers.prepared)
	}
}

func TestOnlyAnAllocatedClaimOfThePodIsPrepared(t *testing.T) {
	template := []corev1.PodResourceClaim{{Name: "devices", ResourceClaimTemplateName: new("template")}}
	for name, tc := range map[string]struct {
		change func(*corev1.Pod)
		want   string // a part of the error; empty: none
		calls  int
	}{
		"allocated":      {func(*corev1.Pod) {}, "", 2},
		"no claims":      {func(p *corev1.Pod) { p.Spec.ResourceClaims = nil }, "", 0},
		"of another pod": {func(p *corev1.Pod) { p.UID = "three" }, "not allocated to the pod", 0},
		"missing":        {func(p *corev1.Pod) { p.Spec.ResourceClaims[0].ResourceClaimName = new("none") }, "not found", 0},
		"not allocated":  {func(p *corev1.Pod) { p.Spec.ResourceClaims[0].ResourceClaimName = new("free") }, "not allocated to the pod", 0},
		"not created":    {func(p *corev1.Pod) { p.Spec.ResourceClaims = template }, "not been created yet", 0},
		"not needed": {func(p *corev1.Pod) {
			p.Spec.ResourceClaims = template
			p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "devices"}}
		}, "", 0},
		"created for another pod": {func(p *corev1.Pod) {
			p.Spec.ResourceClaims = template
			p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "devices", ResourceClaimName: new("claim")}}
		}, "not created for the pod", 0},
		"created for the pod": {func(p *corev1.Pod) {
			p.Spec.ResourceClaims = template
			p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "devices", ResourceClaimName: new("own")}}
		}, "", 2},
	} {
		t.Run(name, func(t *testing.T) {
			claims, drivers, api := newClaims(t)
			free := allocatedClaim("free", "one")
			free.Status.Allocation = nil
			own := allocatedClaim("own", "one")
			own.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "one", UID: "one", Controller: new(true)}}
			api.Put(free)
			api.Put(own)
			pod := claimPod("one")
			tc.change(pod)
			err := claims.Prepare(t.Context(), pod)
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Prepare = %v, want %q", err, tc.want)
			}
			if len(drivers.prepared) != tc.calls {
				t.Errorf("prepared are %v, want %d calls", drivers.prepared, tc.calls)
			}
		})
	}
}

func TestAContainerHasTheDevicesOfItsRequests(t *testing.T) {
	claims, drivers, _ := newClaims(t)
	drivers.devices = []podruntime.ClaimDevice{
		{Requests: []string{"gpu"}, CDI: []string{"x/y=2", "x/y=1"}}, {Requests: []string{"nic/fast"}, CDI: []string{"x/y=3"}}, {CDI: []string{"x/y=all"}}, {Requests: []string{"gpu"}},
	}
	pod := claimPod("one")
	if _, err := claims.Devices(pod, &pod.Spec.Containers[0]); err == nil {
		t.Error("a pod that is not prepared has devices")
	}
	if err := claims.Prepare(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	for request, want := range map[string][]string{
		"": {"x/y=1", "x/y=2", "x/y=3", "x/y=all"}, "gpu": {"x/y=1", "x/y=2", "x/y=all"}, "nic": {"x/y=3", "x/y=all"}, "other": {"x/y=all"},
	} {
		pod.Spec.Containers[0].Resources.Claims[0].Request = request
		if got, err := claims.Devices(pod, &pod.Spec.Containers[0]); err != nil || !slices.Equal(got, want) {
			t.Errorf("request %q: %q, %v, want %q", request, got, err, want)
		}
	}
	other := corev1.Container{Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "another"}}}}
	if got, err := claims.Devices(pod, &other); err != nil || got != nil {
		t.Errorf("a container with another claim has %q, %v", got, err)
	}
	drivers.devices = nil // a driver may have no device for the runtime
	if err := claims.Prepare(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	if got, err := claims.Devices(pod, &pod.Spec.Containers[0]); err != nil || got != nil {
		t.Errorf("a container whose claim has no devices has %q, %v", got, err)
	}
	if got, err := claims.Devices(pod, &corev1.Container{Name: "without"}); err != nil || got != nil {
		t.Errorf("a container without claims has %q, %v", got, err)
	}
}

// extendedPod returns a pod whose extended resources the scheduler has replaced by a claim: main has
// the devices of two requests, and other has none.
func extendedPod(uid types.UID) *corev1.Pod {
	pod := claimPod(uid)
	pod.Spec.ResourceClaims, pod.Spec.Containers[0].Resources.Claims = nil, nil
	pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: "other"})
	pod.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "claim", RequestMappings: []corev1.ContainerExtendedResourceRequest{
		{ContainerName: "main", ResourceName: "example.com/gpu", RequestName: "container-0-request-0"},
		{ContainerName: "main", ResourceName: "example.com/nic", RequestName: "container-0-request-1"},
	}}
	return pod
}

func TestTheClaimOfExtendedResourcesIsPrepared(t *testing.T) {
	claims, drivers, api := newClaims(t)
	pod := extendedPod("one")
	apitest.Edit(api, "default", "claim", func(c *resourcev1.ResourceClaim) {
		c.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(pod, corev1.SchemeGroupVersion.WithKind("Pod"))}
	})
	if !podruntime.HasClaims(pod) || podruntime.HasClaims(&corev1.Pod{}) {
		t.Error("a pod has claims if its extended resources have one")
	}
	if _, err := claims.Devices(pod, &pod.Spec.Containers[0]); err == nil {
		t.Error("devices before Prepare")
	}
	drivers.devices = []podruntime.ClaimDevice{
		{Requests: []string{"container-0-request-0"}, CDI: []string{"gpu"}},
		{Requests: []string{"container-0-request-1"}, CDI: []string{"nic"}},
		{Requests: []string{"container-1-request-0"}, CDI: []string{"of another container"}},
	}
	if err := claims.Prepare(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	// A restart of the container, by another process, has them too.
	later := &podruntime.Claims{Dir: claims.Dir, Client: claims.Client, Drivers: drivers}
	for i, want := range [][]string{{"gpu", "nic"}, nil} {
		if got, err := later.Devices(pod, &pod.Spec.Containers[i]); err != nil || !slices.Equal(got, want) {
			t.Errorf("container %d has %q, %v, want %q", i, got, err, want)
		}
	}
	if err := later.Release(t.Context(), "one"); err != nil || len(drivers.prepared) != 0 {
		t.Errorf("%v are still prepared: %v", drivers.prepared, err)
	}
}

// TestAClaimOfOthersIsNotPrepared: one that was made for another pod, and one of a pod group, whose
// pods share it by other rules.
func TestAClaimOfOthersIsNotPrepared(t *testing.T) {
	for name, tc := range map[string]struct {
		pod   *corev1.Pod
		edit  func(*resourcev1.ResourceClaim)
		wants string
	}{
		"extended resources of another pod": {extendedPod("one"), func(*resourcev1.ResourceClaim) {}, "was not created for the pod"},
		"of a pod group": {claimPod("one"), func(c *resourcev1.ResourceClaim) {
			c.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{APIGroup: "scheduling.k8s.io", Resource: "podgroups", Name: "g", UID: "g"}}
		}, "pod group"},
	} {
		claims, drivers, api := newClaims(t)
		apitest.Edit(api, "default", "claim", tc.edit)
		if err := claims.Prepare(t.Context(), tc.pod); err == nil || !strings.Contains(err.Error(), tc.wants) || len(drivers.prepared) != 0 {
			t.Errorf("%s: %v, and %v are prepared, want %q", name, err, drivers.prepared, tc.wants)
		}
	}
}
