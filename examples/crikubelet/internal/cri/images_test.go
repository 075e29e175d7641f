// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/kubewright/kubewright/examples/crikubelet/internal/criserver"
	"github.com/kubewright/kubewright/podsync/podruntime"
)

func TestReference(t *testing.T) {
	for image, want := range map[string]string{
		"busybox":                     "busybox:latest",
		"busybox:1.37":                "busybox:1.37",
		"localhost:5000/a/b":          "localhost:5000/a/b:latest",
		"localhost:5000/a/b:v1":       "localhost:5000/a/b:v1",
		"r.io/a@sha256:00":            "r.io/a@sha256:00",
		"FAILED_IMAGE":                "",
		"":                            "",
		"a b":                         "",
		"registry.example/a:V1.0-Rc1": "registry.example/a:V1.0-Rc1",
	} {
		got, err := reference(image)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v, want %q", image, got, err, want)
		}
	}
}

func TestPullPolicies(t *testing.T) {
	for name, tc := range map[string]struct {
		policy          corev1.PullPolicy
		here, there     bool
		pulls           int
		reason, backOff string
	}{
		"if not present, here":  {corev1.PullIfNotPresent, true, true, 0, "", ""},
		"if not present, there": {corev1.PullIfNotPresent, false, true, 1, "", ""},
		"if not present, none":  {corev1.PullIfNotPresent, false, false, 1, "ErrImagePull", "ImagePullBackOff"},
		"no policy, here":       {"", true, true, 0, "", ""},
		"always, here":          {corev1.PullAlways, true, true, 1, "", ""},
		"always, none":          {corev1.PullAlways, true, false, 1, "ErrImagePull", "ImagePullBackOff"},
		"never, here":           {corev1.PullNever, true, true, 0, "", ""},
		"never, there":          {corev1.PullNever, false, true, 0, "ErrImageNeverPull", ""},
	} {
		t.Run(name, func(t *testing.T) {
			server := criserver.Start(t)
			image := &runtimeapi.Image{Id: "sha256:1"}
			if tc.here {
				server.Images["app:1"] = image
			}
			if tc.there {
				server.Registry["app:1"] = image
			}
			r, c := newRuntime(t, server), &corev1.Container{Image: "app:1", ImagePullPolicy: tc.policy}
			err := r.Pull(t.Context(), pod(), c)
			image, startErr := r.pulled(t.Context(), c)
			if there := err == nil || tc.here; there != (startErr == nil) || there != (image.GetId() == "sha256:1") {
				t.Errorf("after Pull there is %v, %v", image, startErr)
			}
			start := &podruntime.StartError{}
			if errors.As(err, &start); start.Reason != tc.reason || start.BackoffReason != tc.backOff || len(server.Pulls) != tc.pulls {
				t.Errorf("%v, %d pulls", err, len(server.Pulls))
			}
		})
	}
}

// An image that one tenant's secret has fetched is not there for the pod of another tenant.
func TestAnImageOfASecretIsForPodsWithThatSecret(t *testing.T) {
	server := criserver.Start(t)
	server.Images["r.example/loaded:1"] = &runtimeapi.Image{Id: "sha256:3"}
	server.Registry["r.example/app:1"] = &runtimeapi.Image{Id: "sha256:2"}
	server.Password = "right"
	secret := func(name, password string) *corev1.Secret {
		encoded := base64.StdEncoding.EncodeToString([]byte("me:" + password))
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Type: corev1.SecretTypeDockercfg,
			Data: map[string][]byte{corev1.DockerConfigKey: []byte(`{"r.example": {"auth": "` + encoded + `"}}`)}}
	}
	r := newRuntime(t, server, secret("right", "right"), secret("same", "right"), secret("wrong", "wrong"))
	pull := func(r *Runtime, image, secret, uid string, policy corev1.PullPolicy) string {
		p := pod()
		p.UID = types.UID(uid)
		if secret != "" {
			p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: secret}}
		}
		before := len(server.Pulls)
		err := r.Pull(t.Context(), p, &corev1.Container{Image: "r.example/" + image + ":1", ImagePullPolicy: policy})
		start := &podruntime.StartError{}
		errors.As(err, &start)
		return fmt.Sprint(start.Reason, " ", len(server.Pulls)-before)
	}
	for _, tc := range []struct {
		image, secret, uid string
		policy             corev1.PullPolicy
		want               string // the reason, and the pulls
	}{
		{"loaded", "", "1", corev1.PullIfNotPresent, " 0"}, // it was there before
		{"app", "right", "1", corev1.PullIfNotPresent, " 1"},
		{"app", "right", "1", corev1.PullIfNotPresent, " 0"},
		{"app", "same", "2", corev1.PullNever, " 0"},
		{"app", "wrong", "3", corev1.PullIfNotPresent, "ErrImagePull 1"},
		{"app", "", "4", corev1.PullIfNotPresent, "ErrImagePull 1"},
		{"app", "", "4", corev1.PullNever, "ErrImageNeverPull 0"},
		{"app", "gone", "2", corev1.PullIfNotPresent, " 0"}, // it was allowed before: the secret may be out of reach
	} {
		if got := pull(r, tc.image, tc.secret, tc.uid, tc.policy); got != tc.want {
			t.Errorf("%+v: %q", tc, got)
		}
	}
	if err := r.RemovePod(t.Context(), "2"); err != nil {
		t.Fatal(err)
	}
	if got := pull(r, "app", "", "2", corev1.PullIfNotPresent); got != "ErrImagePull 1" {
		t.Errorf("after its end a pod with its UID: %q", got)
	}
	// A process that is killed during a pull leaves an image that it has not accounted for.
	next := newRuntime(t, server, secret("right", "right"))
	if err := next.pulledImages.begin("r.example/loaded:1", ""); err != nil {
		t.Fatal(err)
	}
	if got := pull(next, "loaded", "", "1", corev1.PullIfNotPresent); got != "ErrImagePull 1" {
		t.Errorf("after a pull that was cut off: %q", got)
	}
	// What anyone can pull anyone can use.
	server.Password = ""
	if got := pull(r, "app", "", "5", corev1.PullIfNotPresent) + pull(r, "app", "", "6", corev1.PullNever); got != " 1 0" {
		t.Errorf("a public image: %q", got)
	}
	if err := r.pulledImages.forgetImage("sha256:2"); err != nil {
		t.Fatal(err)
	}
}

// A pull that fails, or is cut off, takes an image that was loaded from no pod.
func TestAPullThatFailsTakesALoadedImageFromNoPod(t *testing.T) {
	const name = "r.example/app:1"
	loaded := &runtimeapi.Image{Id: "sha256:loaded"}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "any"}, Type: corev1.SecretTypeDockercfg,
		Data: map[string][]byte{corev1.DockerConfigKey: []byte(`{"r.example":{"username":"me","password":"expired"}}`)}}
	refused := status.Error(codes.Unauthenticated, "expired")
	for what, tc := range map[string]struct {
		here    bool  // before the pull; otherwise it is loaded after it
		err     error // of the pull; nil: it brings the same image
		earlier bool  // an earlier process was killed during a pull
		allowed bool
	}{
		"refused, here":            {true, refused, false, true},
		"cut off, here":            {true, status.Error(codes.Canceled, "the pod is gone"), false, true},
		"the same image, here":     {true, nil, false, true},
		"refused, loaded after it": {false, refused, false, true},
		// The runtime may have pulled it.
		"cut off, there after it":     {false, status.Error(codes.Unavailable, "killed"), false, false},
		"refused, cut off before it":  {false, refused, true, false},
		"refused, here since another": {true, refused, true, false},
	} {
		t.Run(what, func(t *testing.T) {
			server := criserver.Start(t)
			r := newRuntime(t, server, secret)
			if tc.here {
				server.Images[name] = loaded
			}
			if tc.earlier {
				if err := (&pulledImages{dir: r.cfg.PullDir, pulling: map[string]int{}}).begin(name, ""); err != nil {
					t.Fatal(err)
				}
			}
			server.Fail = func(method string) error {
				if method == "PullImage" {
					return tc.err
				}
				return nil
			}
			server.Registry[name] = loaded
			p := pod(func(p *corev1.Pod) { p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "any"}} })
			if err := r.Pull(t.Context(), p, &corev1.Container{Image: name, ImagePullPolicy: corev1.PullAlways}); (err == nil) != (tc.err == nil) {
				t.Fatal(err)
			}
			server.Images[name] = loaded
			other := pod(func(p *corev1.Pod) { p.UID = "2" })
			if err := r.Pull(t.Context(), other, &corev1.Container{Image: name, ImagePullPolicy: corev1.PullNever}); (err == nil) != tc.allowed {
				t.Errorf("the pod of another tenant: %v", err)
			}
		})
	}
}

// The mark of a pull stays while another one of that image is under way.
func TestAPullThatFailsLeavesTheMarkOfAnotherOne(t *testing.T) {
	r := newRuntime(t, criserver.Start(t))
	p := &r.pulledImages
	mayUse := func() bool {
		ok, err := p.mayUse("app:1", "sha256:1", "other", nil)
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
	if err := errors.Join(p.begin("app:1", ""), p.begin("app:1", ""), p.failed("app:1")); err != nil || mayUse() {
		t.Errorf("one of two pulls has failed: %t, %v", mayUse(), err)
	}
	if err := p.failed("app:1"); err != nil || !mayUse() {
		t.Errorf("both have failed: %t, %v", mayUse(), err)
	}
}

// tarpit is a registry that hangs for one image.
type tarpit struct{ runtimeapi.ImageServiceClient }

func (tarpit) PullImage(ctx context.Context, r *runtimeapi.PullImageRequest, _ ...grpc.CallOption) (*runtimeapi.PullImageResponse, error) {
	if r.Image.Image == "tarpit.example/app:1" {
		<-ctx.Done()
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	return &runtimeapi.PullImageResponse{}, nil
}

func (tarpit) ImageStatus(_ context.Context, r *runtimeapi.ImageStatusRequest, _ ...grpc.CallOption) (*runtimeapi.ImageStatusResponse, error) {
	return &runtimeapi.ImageStatusResponse{Image: &runtimeapi.Image{Id: r.Image.Image}}, nil
}

// A registry that hangs has a place of a pull for a limited time, however many credentials the
// pod has for it, and leaves one for pods of other namespaces.
func TestARegistryThatHangsDelaysOtherPullsForALimitedTime(t *testing.T) {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "many"}, Type: corev1.SecretTypeDockercfg,
		Data: map[string][]byte{corev1.DockerConfigKey: []byte(`{"tarpit.example": {"username": "a"}, "*.example": {"username": "b"}, "tarpit.example/app": {"username": "c"}}`)}}
	for max, waits := range map[int]map[string]time.Duration{1: {"other": time.Hour}, 3: {"other": 0, "default": time.Hour}} {
		dir := t.TempDir()
		synctest.Test(t, func(t *testing.T) {
			r := &Runtime{cfg: Config{Secrets: clients(secret).CoreV1(), PullTimeout: time.Hour}, images: tarpit{}, pulls: newPullPlaces(max)}
			r.pulledImages = pulledImages{dir: dir, pulling: map[string]int{}}
			begin, failed := time.Now(), make(chan error)
			hanging := min(max, 2)
			for range hanging {
				go func() {
					p := pod(func(p *corev1.Pod) { p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "many"}} })
					failed <- r.pull(t.Context(), p, &runtimeapi.ImageSpec{Image: "tarpit.example/app:1"}, "")
				}()
			}
			synctest.Wait()
			var wg sync.WaitGroup
			for namespace, want := range waits {
				wg.Go(func() {
					p := pod(func(p *corev1.Pod) { p.Namespace = namespace })
					if err := r.pull(t.Context(), p, &runtimeapi.ImageSpec{Image: "app:1"}, ""); err != nil || time.Since(begin) != want {
						t.Errorf("max %d: the image of namespace %s was pulled after %v, %v, want %v", max, namespace, time.Since(begin), err, want)
					}
				})
			}
			for range hanging {
				if err := <-failed; err == nil || !strings.Contains(err.Error(), "not pulled within 1h0m0s") {
					t.Errorf("the image of the registry that hangs: %v", err)
				}
			}
			wg.Wait()
			if len(r.pulls.of) > 0 || r.pulls.all > 0 {
				t.Errorf("after all pulls: %v", r.pulls.of)
			}
		})
	}
}

// Two namespaces whose registries hang leave a place for a third.
func TestTwoNamespacesDoNotHoldAllPulls(t *testing.T) {
	for _, most := range []int{3, 4, 8, 20} {
		synctest.Test(t, func(t *testing.T) {
			places := newPullPlaces(most)
			ctx, cancel := context.WithCancel(t.Context())
			var waiting sync.WaitGroup
			for range most {
				for _, namespace := range []string{"a", "b"} {
					waiting.Go(func() { _ = places.enter(ctx, namespace) })
					synctest.Wait()
				}
			}
			if err := places.enter(ctx, "c"); err != nil || places.all > most {
				t.Errorf("%d places: %v, %v", most, places.of, err)
			}
			cancel()
			waiting.Wait()
		})
	}
}

// hangingSecrets is an API server that hangs.
type hangingSecrets struct{ corev1client.SecretInterface }

func (h hangingSecrets) Secrets(string) corev1client.SecretInterface { return h }

func (hangingSecrets) Get(ctx context.Context, _ string, _ metav1.GetOptions) (*corev1.Secret, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// A pod has a place of a pull neither while its secrets are read nor after it has gone.
func TestAPullThatWaitsHasNoPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &Runtime{cfg: Config{Secrets: hangingSecrets{}, PullTimeout: time.Hour}, images: tarpit{}, pulls: newPullPlaces(1)}
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error)
		pull := func(p *corev1.Pod) {
			go func() { failed <- r.pull(ctx, p, &runtimeapi.ImageSpec{Image: "app:1"}, "") }()
			synctest.Wait()
		}
		pull(pod(func(p *corev1.Pod) { p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "a"}} }))
		if err := r.pulls.enter(t.Context(), "other"); err != nil || r.pulls.all != 1 {
			t.Fatalf("%d pulls, %v", r.pulls.all, err)
		}
		pull(pod())
		cancel()
		for range 2 {
			if err := <-failed; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
		r.pulls.leave("other")
		if len(r.pulls.of) > 0 || r.pulls.all > 0 {
			t.Errorf("after all pulls: %v", r.pulls.of)
		}
	})
}

func TestCredentialsAreForTheirRegistry(t *testing.T) {
	for _, tc := range []struct {
		registry, image string
		want            bool
	}{
		{"r.example", "r.example/a", true},
		{"https://r.example/v1/", "r.example/a", true},
		{"r.example", "r.example:5000/a", false},
		{"r.example:5000", "r.example:5000/a/b:1", true},
		{"*.example", "r.example/a", true},
		{"*.example", "a.r.example/a", false},
		{"r.example/team", "r.example/team/a", true},
		{"r.example/team", "r.example/teammate/a", false},
		{"r.example/team", "r.example/team:1", true},
		{"https://index.docker.io/v1/", "busybox", true},
		{"https://index.docker.io/v1/", "library/busybox:1", true},
		{"docker.io", "r.example/busybox", false},
		{"localhost", "localhost/a", true},
	} {
		if got := covers(tc.registry, tc.image); got != tc.want {
			t.Errorf("%s for %s: %t", tc.registry, tc.image, got)
		}
	}
}

func TestPullSecretsAreTriedUntilOneIsAccepted(t *testing.T) {
	server := criserver.Start(t)
	server.Registry["r.example/team/app:1"] = &runtimeapi.Image{Id: "sha256:2"}
	server.Password = "right"
	encoded := base64.StdEncoding.EncodeToString([]byte("me:right"))
	r := newRuntime(t, server,
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "old"}, Type: corev1.SecretTypeDockercfg,
			Data: map[string][]byte{corev1.DockerConfigKey: []byte(`{"r.example/team":{"username":"me","password":"wrong"}}`)}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "new"}, Type: corev1.SecretTypeDockerConfigJson,
			Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(`{"auths":{"r.example":{"auth":"` + encoded + `"},"elsewhere.example":{"username":"x"}}}`)}})
	p := pod(func(p *corev1.Pod) {
		p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "missing"}, {Name: "old"}, {Name: "new"}}
	})
	if err := r.Pull(t.Context(), p, &corev1.Container{Image: "r.example/team/app:1"}); err != nil {
		t.Fatal(err)
	}
	if len(server.Pulls) != 2 || server.Pulls[0].Auth.Password != "wrong" || server.Pulls[1].Auth.Username != "me" {
		t.Errorf("pulls with %v: want the longest path first", server.Pulls)
	}
}

func TestImageGC(t *testing.T) {
	gc := ImageGC{High: 85, Low: 80}
	for _, tc := range []struct{ capacity, available, want uint64 }{{100, 16, 0}, {100, 15, 5}, {100, 0, 20}, {100, 200, 0}} {
		if got := gc.excess(tc.capacity, tc.available); got != tc.want {
			t.Errorf("%+v: %d", tc, got)
		}
	}
	server := criserver.Start(t)
	r := newRuntime(t, server)
	for name, size := range map[string]uint64{"a:1": 10, "b:1": 10, "c:1": 10, "keep:1": 10} {
		server.Images[name] = &runtimeapi.Image{Id: "sha256:" + name, RepoTags: []string{name}, Size: size}
	}
	server.Images["pinned:1"] = &runtimeapi.Image{Id: "sha256:pinned", Pinned: true}
	if err := r.Start(t.Context(), set(t, r, pod())); err != nil { // uses none:latest
		t.Fatal(err)
	}
	server.Images["pause:1"] = &runtimeapi.Image{Id: "sha256:pause", RepoTags: []string{"pause:1"}}
	server.Info = map[string]string{"config": `{"sandboxImage": "pause:1"}`}
	gc.MinAge, gc.Keep = time.Minute, []string{"keep:1"}
	now := time.Now()
	used := map[string]time.Time{}
	collect := func(excess uint64, now time.Time, want uint64) {
		t.Helper()
		if freed, err := r.collectImages(t.Context(), gc, used, excess, now); err != nil || freed != want {
			t.Errorf("%d bytes freed, %v, want %d", freed, err, want)
		}
	}
	collect(1000, now, 0)                     // all are new
	collect(1000, now.Add(30*time.Second), 0) // and still are
	collect(0, now.Add(time.Hour), 0)         // there is room
	used["sha256:b:1"] = now.Add(-time.Hour)
	collect(5, now.Add(time.Hour), 10) // one is enough
	if server.Images["b:1"] != nil || server.Images["a:1"] == nil {
		t.Errorf("b:1 was used the longest ago, and there are %v", server.Images)
	}
	// One that the runtime keeps is no reason to keep the others.
	used["sha256:a:1"] = now.Add(-time.Hour)
	refused := false
	server.Fail = func(method string) error {
		if method == "RemoveImage" && !refused {
			refused = true
			return errors.New("in use by another program")
		}
		return nil
	}
	if freed, err := r.collectImages(t.Context(), gc, used, 1000, now.Add(time.Hour)); freed != 10 || err == nil || !strings.Contains(err.Error(), "sha256:a:1") {
		t.Errorf("%d bytes freed, %v", freed, err)
	}
	used["sha256:gone"] = now // another program has deleted it
	collect(1000, now.Add(time.Hour), 10)
	if len(server.Images) != 4 {
		t.Errorf("the images in use, pinned, kept and of sandboxes are left, and there are %v", server.Images)
	}
	if len(used) != 4 {
		t.Errorf("times are kept of %v", used)
	}
}
