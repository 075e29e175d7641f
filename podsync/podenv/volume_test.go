// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podenv

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/statuserr"
)

// tokens answers token requests; the in-memory API server has none.
type tokens struct {
	corev1client.ServiceAccountInterface
	namespace string
	asked     *[]string
}

func (t tokens) ServiceAccounts(namespace string) corev1client.ServiceAccountInterface {
	t.namespace = namespace
	return t
}

func (t tokens) CreateToken(ctx context.Context, name string, r *authenticationv1.TokenRequest, _ metav1.CreateOptions) (*authenticationv1.TokenRequest, error) {
	if _, ok := ctx.Deadline(); !ok {
		return nil, fmt.Errorf("a request without a deadline")
	}
	ref := r.Spec.BoundObjectRef
	*t.asked = append(*t.asked, fmt.Sprintf("%s/%s %v %d %s %s %s", t.namespace, name, r.Spec.Audiences, *r.Spec.ExpirationSeconds, ref.Kind, ref.Name, ref.UID))
	r.Status = authenticationv1.TokenRequestStatus{Token: fmt.Sprintf("token-%d", len(*t.asked)), ExpirationTimestamp: metav1.NewTime(time.Unix(1000, 0))}
	return r, nil
}

func TestVolume(t *testing.T) {
	settings := configMap("settings", map[string]string{"a": "1", "b": "2"})
	settings.BinaryData = map[string][]byte{"bin": {0xff, 0}}
	object := corev1.LocalObjectReference{Name: "settings"}
	none := corev1.LocalObjectReference{Name: "none"}
	for _, tc := range []struct {
		name   string
		source corev1.VolumeSource
		want   string // path mode content, by semicolons
		fails  string
		wait   bool
	}{
		{name: "ConfigMap", source: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: object}},
			want: "a 644 1;b 644 2;bin 644 \xff\x00"},
		{name: "items and modes", source: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: object, DefaultMode: new(int32(0o400)),
			Items: []corev1.KeyToPath{{Key: "a", Path: "dir/x"}, {Key: "a", Path: "y", Mode: new(int32(0o755))}}}},
			want: "dir/x 400 1;y 755 1"},
		{name: "no key", source: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: object, Items: []corev1.KeyToPath{{Key: "x", Path: "x"}}}},
			fails: `podenv: volume v: key "x" of ConfigMap shop/settings: missing`, wait: true},
		{name: "optional key", source: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: object, Optional: new(true),
			Items: []corev1.KeyToPath{{Key: "x", Path: "x"}, {Key: "b", Path: "b"}}}}, want: "b 644 2"},
		{name: "no ConfigMap", source: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: none}},
			fails: "podenv: volume v: ConfigMap shop/none: missing", wait: true},
		{name: "optional ConfigMap", source: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: none, Optional: new(true)}}},
		{name: "way out", source: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: object, Items: []corev1.KeyToPath{{Key: "a", Path: "../a"}}}},
			fails: `the path "../a" leads out of the volume`},
		{name: "Secret", source: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "login", DefaultMode: new(int32(0o440))}}, want: "password 440 x;user 440 ann"},
		{name: "no Secret", source: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "none"}}, fails: "Secret shop/none: missing", wait: true},
		{name: "downward", source: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{
			{Path: "labels", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels"}},
			{Path: "one", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.annotations['note']"}},
			{Path: "cpu", ResourceFieldRef: &corev1.ResourceFieldSelector{ContainerName: "app", Resource: "limits.cpu", Divisor: resource.MustParse("1m")}},
		}}}, want: "cpu 644 500;labels 644 app=\"web\"\ntier=\"a \\\"b\\\"\";one 644 line 1\nline 2"},
		{name: "downward, wrong", source: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{
			{Path: "x", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.podIP"}}, {Path: "y"}, {Path: "z", ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "limits.cpu"}}}}},
			fails: "podenv: volume v: x: no field \"status.podIP\" can be referred to\npodenv: volume v: y: a source that is not known here\npodenv: volume v: z: a resource of no container"},
		{name: "projected", source: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{DefaultMode: new(int32(0o600)), Sources: []corev1.VolumeProjection{
			{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: object, Items: []corev1.KeyToPath{{Key: "a", Path: "x"}, {Key: "b", Path: "y"}}}},
			{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "login"}, Items: []corev1.KeyToPath{{Key: "user", Path: "x"}}}},
			{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{Path: "n", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}}}},
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: new(int64(600)), Audience: "vault"}},
		}}}, want: "n 600 p;token 600 token-1 until 1000;x 600 ann;y 600 2"},
		{name: "items of the downward API have modes", source: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{DefaultMode: new(int32(0o400)), Items: []corev1.DownwardAPIVolumeFile{
			{Path: "n", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}, Mode: new(int32(0o440))},
			{Path: "u", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.uid"}}}}}, want: "n 440 p;u 400 uid-1"},
		{name: "optional objects and keys of a projection", source: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: none, Optional: new(true)}},
			{Secret: &corev1.SecretProjection{LocalObjectReference: none, Optional: new(true)}},
			{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "login"}, Optional: new(true), Items: []corev1.KeyToPath{{Key: "none", Path: "x"}, {Key: "user", Path: "y"}}}},
		}}}, want: "y 644 ann"},
		{name: "not optional", source: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "none", Optional: new(false)}}, fails: "Secret shop/none: missing", wait: true},
		{name: "projection of nothing known", source: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{}}}}, fails: "a projection that is not supported here"},
		{name: "an owner of the files", source: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: object, DefaultUser: new(int64(0))}},
			fails: "podenv: volume v: user 0 for a file: owners are not supported here"},
		{name: "an owner of a Secret's files", source: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "login", DefaultUser: new(int64(7))}}, fails: "user 7 for a file"},
		{name: "an owner of fields", source: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{DefaultUser: new(int64(7))}}, fails: "user 7 for a file"},
		{name: "an owner of an item", source: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: object,
			Items: []corev1.KeyToPath{{Key: "a", Path: "a"}, {Key: "b", Path: "b", User: new(int64(8))}}}}, fails: "user 8 for a file"},
		{name: "an owner of a field", source: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{
			{Path: "n", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}, User: new(int64(8))}}}}, fails: "user 8 for a file"},
		{name: "owners in a projection", source: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{DefaultUser: new(int64(1)), Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", User: new(int64(2)), Audience: "vault", ExpirationSeconds: new(int64(600))}},
			{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{Path: "ca", User: new(int64(3))}},
			{PodCertificate: &corev1.PodCertificateProjection{User: new(int64(4))}},
		}}}, fails: "podenv: volume v: user 1 for a file: owners are not supported here\npodenv: volume v: user 2 for a file: owners are not supported here\n" +
			"podenv: volume v: user 3 for a file: owners are not supported here\n"},
		{name: "no data", source: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}, fails: "not a volume of data from the API"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var asked []string
			w := newWorld(t, func(c *Config) { c.ServiceAccounts = tokens{asked: &asked} }, settings.DeepCopy(), secret("login", map[string]string{"user": "ann", "password": "x"}))
			pod := podOf(corev1.Container{Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"cpu": resource.MustParse("500m")}}})
			pod.ObjectMeta = metav1.ObjectMeta{UID: "uid-1", Labels: map[string]string{"tier": `a "b"`, "app": "web"}, Annotations: map[string]string{"note": "line 1\nline 2"}}
			// The node may read the objects that the pod refers to.
			pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: tc.source}, {Name: "other", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "login"}}}}
			p := w.pod(pod)
			files, err := p.Volume(t.Context(), "v")
			if tc.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tc.fails) || CanWait(err) != tc.wait {
					t.Errorf("got %v, wait %v\nwant %s", err, CanWait(err), tc.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, path := range slices.Sorted(maps.Keys(files)) {
				f := files[path]
				line := fmt.Sprintf("%s %o %s", path, f.Mode, f.Data)
				if !f.Expires.IsZero() {
					line += fmt.Sprintf(" until %d", f.Expires.Unix())
				}
				got = append(got, line)
			}
			if s := strings.Join(got, ";"); s != tc.want {
				t.Errorf("got  %q\nwant %q", s, tc.want)
			}
			if len(asked) > 0 && asked[0] != "shop/default [vault] 600 Pod p uid-1" {
				t.Errorf("asked for %s", asked[0])
			}
		})
	}
}

func TestVolumeErrors(t *testing.T) {
	w := newWorld(t, nil)
	pod := podOf(corev1.Container{})
	pod.Spec.Volumes = []corev1.Volume{{Name: "api", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}}}}}}}
	p := w.pod(pod)
	for name, want := range map[string]string{"api": "tokens are not supported on this node", "none": "the pod has no such volume"} {
		if _, err := p.Volume(t.Context(), name); err == nil || !strings.Contains(err.Error(), want) || CanWait(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestIsData(t *testing.T) {
	for _, tc := range []struct {
		source corev1.VolumeSource
		want   bool
	}{
		{corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}}, true},
		{corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{}}, true},
		{corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{}}, true},
		{corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}, true},
		{corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}, true},
		{corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}, false},
	} {
		if got := IsData(&corev1.Volume{VolumeSource: tc.source}); got != tc.want {
			t.Errorf("IsData(%+v) = %v", tc.source, got)
		}
	}
}

// TestTokenRequests says what is asked for, and how an answer that is no token reads.
func TestTokenRequests(t *testing.T) {
	for name, tc := range map[string]struct {
		account string
		source  corev1.ServiceAccountTokenProjection
		want    string
	}{
		"by default": {"", corev1.ServiceAccountTokenProjection{}, "shop/default [] 3600 Pod p uid-1"},
		"its own":    {"robot", corev1.ServiceAccountTokenProjection{Audience: "vault", ExpirationSeconds: new(int64(900))}, "shop/robot [vault] 900 Pod p uid-1"},
	} {
		var asked []string
		w := newWorld(t, func(c *Config) { c.ServiceAccounts = tokens{asked: &asked} })
		tc.source.Path = "token"
		pod := podWith(corev1.VolumeProjection{ServiceAccountToken: &tc.source})
		pod.UID, pod.Spec.ServiceAccountName = "uid-1", tc.account
		if _, err := w.pod(pod).Volume(t.Context(), "v"); err != nil || len(asked) != 1 || asked[0] != tc.want {
			t.Errorf("%s: asked for %q, %v, want %s", name, asked, err, tc.want)
		}
	}
	for account, missing := range map[string]bool{"none": true, "denied": false} {
		w := newWorld(t, nil, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "denied"}})
		w.resolver.cfg.ServiceAccounts = w.server.Client(apitest.NodeUser("n1")).CoreV1()
		if !missing {
			w.server.Inject(apitest.Fault{Match: apitest.Match{Verb: "create"}, Status: statuserr.InternalError("broken")})
		}
		pod := podWith(corev1.VolumeProjection{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}})
		pod.Spec.ServiceAccountName = account
		_, err := w.pod(pod).Volume(t.Context(), "v")
		if err == nil || errors.Is(err, ErrMissing) != missing || !CanWait(err) || !strings.Contains(err.Error(), "ServiceAccount shop/"+account) {
			t.Errorf("%s: %v", account, err)
		}
	}
}
