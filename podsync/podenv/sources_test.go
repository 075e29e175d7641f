// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package podenv

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/internal/statuserr"
)

func TestResourceField(t *testing.T) {
	q := resource.MustParse
	allocatable := corev1.ResourceList{"cpu": q("3500m"), "memory": q("7Gi"), "ephemeral-storage": q("100Gi"), "hugepages-2Mi": q("1Gi")}
	set := corev1.ResourceRequirements{
		Requests: corev1.ResourceList{"cpu": q("250m"), "memory": q("64Mi"), "hugepages-2Mi": q("4Mi")},
		Limits:   corev1.ResourceList{"cpu": q("1500m"), "memory": q("128Mi"), "hugepages-2Mi": q("4Mi")},
	}
	for _, tc := range []struct {
		name        string
		ref, div    string
		container   string
		unset       bool // the container sets nothing
		pod         corev1.ResourceList
		noNode      bool
		want, fails string
	}{
		{name: "cpu rounds up", ref: "limits.cpu", want: "2"},
		{name: "millicpu", ref: "limits.cpu", div: "1m", want: "1500"},
		{name: "divisor 0 is 1", ref: "requests.cpu", div: "0", want: "1"},
		{name: "memory", ref: "requests.memory", want: "67108864"},
		{name: "memory in Mi", ref: "limits.memory", div: "1Mi", want: "128"},
		{name: "memory in Gi rounds up", ref: "limits.memory", div: "1Gi", want: "1"},
		{name: "memory in M rounds up", ref: "limits.memory", div: "1M", want: "135"},
		{name: "huge pages", ref: "limits.hugepages-2Mi", div: "1Mi", want: "4"},
		{name: "no request is 0", ref: "requests.ephemeral-storage", want: "0"},
		{name: "limit of the node", ref: "limits.ephemeral-storage", div: "1Gi", want: "100"},
		{name: "cpu of the node", ref: "limits.cpu", unset: true, want: "4"},
		{name: "limit of the pod", ref: "limits.cpu", unset: true, pod: corev1.ResourceList{"cpu": q("2")}, want: "2"},
		{name: "zero limit of the pod", ref: "limits.cpu", unset: true, pod: corev1.ResourceList{"cpu": q("0")}, want: "4"},
		{name: "its own limit first", ref: "limits.cpu", pod: corev1.ResourceList{"cpu": q("9")}, want: "2"},
		{name: "no huge pages of the node", ref: "limits.hugepages-2Mi", unset: true, want: "0"},
		{name: "no node", ref: "limits.memory", unset: true, noNode: true, want: "0"},
		{name: "another container", ref: "limits.cpu", container: "other", div: "1m", want: "7"},
		{name: "no container", ref: "limits.cpu", container: "none", fails: `no container "none"`},
		{name: "no resource", ref: "limits.gpu", fails: `no resource "limits.gpu"`},
		{name: "itself by name", ref: "limits.cpu", container: "app", div: "1m", want: "1500"},
		{name: "an even quotient", ref: "limits.memory", div: "64Mi", want: "2"},
		{name: "any resource of another kind", ref: "requests.example.com/gpu", fails: `no resource "requests.example.com/gpu"`},
		{name: "neither", ref: "cpu", fails: `no resource "cpu"`},
		{name: "neither limit nor request", ref: "usage.cpu", fails: `no resource "usage.cpu"`},
		{name: "negative divisor", ref: "limits.cpu", div: "-1", fails: "can't be divided"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, func(c *Config) {
				if !tc.noNode {
					c.Allocatable = func() corev1.ResourceList { return allocatable }
				}
			})
			ref := &corev1.ResourceFieldSelector{Resource: tc.ref, ContainerName: tc.container}
			if tc.div != "" {
				ref.Divisor = q(tc.div)
			}
			c := corev1.Container{Env: []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: ref}}}}
			if !tc.unset {
				c.Resources = set
			}
			pod := podOf(c)
			pod.Spec.InitContainers = []corev1.Container{{Name: "other", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"cpu": q("7m")}}}}
			if tc.pod != nil {
				pod.Spec.Resources = &corev1.ResourceRequirements{Limits: tc.pod}
			}
			pod.Namespace = ns
			env, err := w.resolver.Pod(pod).Container(t.Context(), "app", Addresses{})
			if tc.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tc.fails) || CanWait(err) {
					t.Errorf("got %v, want %s", err, tc.fails)
				}
				return
			}
			if got, _ := env.Lookup("A"); err != nil || got != tc.want {
				t.Errorf("got %s, %v, want %s", got, err, tc.want)
			}
		})
	}
}

// TestServiceVars spells out the variables of two Services.
func TestServiceVars(t *testing.T) {
	w := newWorld(t, nil,
		service("default", "kubernetes", "10.96.0.1", corev1.ServicePort{Name: "https", Port: 443, Protocol: "TCP"}),
		service("default", "elsewhere", "10.96.0.9", corev1.ServicePort{Port: 1}),
		service(ns, "my-dns", "fd00::1", corev1.ServicePort{Name: "dns-udp", Port: 53, Protocol: "UDP"}, corev1.ServicePort{Name: "metrics", Port: 9153}),
		service(ns, "headless", "None", corev1.ServicePort{Port: 1}),
		service(ns, "external", ""), service(ns, "pending", "", corev1.ServicePort{Port: 1}), service(ns, "portless", "10.0.0.8"),
	)
	const kubernetes = "KUBERNETES_PORT=tcp://10.96.0.1:443;KUBERNETES_PORT_443_TCP=tcp://10.96.0.1:443;KUBERNETES_PORT_443_TCP_ADDR=10.96.0.1;KUBERNETES_PORT_443_TCP_PORT=443;" +
		"KUBERNETES_PORT_443_TCP_PROTO=tcp;KUBERNETES_SERVICE_HOST=10.96.0.1;KUBERNETES_SERVICE_PORT=443;KUBERNETES_SERVICE_PORT_HTTPS=443"
	const links = ";MY_DNS_PORT=udp://[fd00::1]:53;MY_DNS_PORT_53_UDP=udp://[fd00::1]:53;MY_DNS_PORT_53_UDP_ADDR=fd00::1;MY_DNS_PORT_53_UDP_PORT=53;MY_DNS_PORT_53_UDP_PROTO=udp;" +
		"MY_DNS_PORT_9153_TCP=tcp://[fd00::1]:9153;MY_DNS_PORT_9153_TCP_ADDR=fd00::1;MY_DNS_PORT_9153_TCP_PORT=9153;MY_DNS_PORT_9153_TCP_PROTO=tcp;" +
		"MY_DNS_SERVICE_HOST=fd00::1;MY_DNS_SERVICE_PORT=53;MY_DNS_SERVICE_PORT_DNS_UDP=53;MY_DNS_SERVICE_PORT_METRICS=9153"
	for _, tc := range []struct {
		name  string
		links *bool
		env   []corev1.EnvVar
		want  string
	}{
		{name: "by default", want: kubernetes + links},
		{name: "without links", links: new(false), want: kubernetes},
		{name: "referred to and replaced", links: new(true), env: []corev1.EnvVar{value("API", "$(KUBERNETES_SERVICE_HOST):$(MY_DNS_SERVICE_PORT)"), value("MY_DNS_SERVICE_HOST", "mine")},
			want: kubernetes + strings.Replace(links, "MY_DNS_SERVICE_HOST=fd00::1;", "", 1) + ";API=10.96.0.1:53;MY_DNS_SERVICE_HOST=mine"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pod := podOf(corev1.Container{Env: tc.env})
			pod.Name, pod.Spec.EnableServiceLinks = strings.ReplaceAll(tc.name, " ", "-"), tc.links
			env, err := w.pod(pod).Container(t.Context(), "app", Addresses{})
			if err != nil {
				t.Fatal(err)
			}
			got, want := env.Strings(), strings.Split(tc.want, ";")
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("got  %q\nwant %q", got, want)
			}
		})
	}
	if n := w.count("services"); n != 2 {
		t.Errorf("%d reads of services for three pods, want 2", n)
	}
}

// TestServiceOrder: by Service, each with its address first, and one definition of
// each name.
func TestServiceOrder(t *testing.T) {
	w := newWorld(t, nil, service("default", "kubernetes", "10.96.0.1", corev1.ServicePort{Port: 443}),
		service(ns, "b", "10.0.0.2", corev1.ServicePort{Port: 2}), service(ns, "a", "10.0.0.1", corev1.ServicePort{Port: 1}),
		// Its name begins as variables of the Service a do.
		service(ns, "a-port", "10.0.0.3", corev1.ServicePort{Port: 1, Name: "x"}))
	env, err := w.pod(podOf(corev1.Container{})).Container(t.Context(), "app", Addresses{})
	if err != nil {
		t.Fatal(err)
	}
	var hosts []string
	seen := map[string]bool{}
	for _, v := range env.Vars {
		if strings.HasSuffix(v.Name, "_SERVICE_HOST") {
			hosts = append(hosts, v.Name)
		}
		if seen[v.Name] {
			t.Errorf("%s twice", v.Name)
		}
		seen[v.Name] = true
	}
	if got := strings.Join(hosts, " "); got != "KUBERNETES_SERVICE_HOST A_SERVICE_HOST A_PORT_SERVICE_HOST B_SERVICE_HOST" {
		t.Errorf("order %s", got)
	}
}

// TestServiceOwnNamespace: a Service of the pod's namespace hides one of the same
// name; no Service kubernetes at all is no error.
func TestServiceOwnNamespace(t *testing.T) {
	w := newWorld(t, nil, service(ns, "kubernetes", "10.0.0.9", corev1.ServicePort{Port: 1}))
	for range 2 {
		w.resolver.services = serviceCache{}
		env, err := w.pod(podOf(corev1.Container{})).Container(t.Context(), "app", Addresses{})
		if host, _ := env.Lookup("KUBERNETES_SERVICE_HOST"); err != nil || host != "10.0.0.9" {
			t.Errorf("host %s, %v", host, err)
		}
		if port, ok := env.Lookup("KUBERNETES_SERVICE_PORT_HTTPS"); ok {
			t.Errorf("the other Service has port %s, and is not hidden", port)
		}
		w.server.Put(service("default", "kubernetes", "10.96.0.1", corev1.ServicePort{Name: "https", Port: 443}))
	}
	w = newWorld(t, func(c *Config) { c.Services = nil })
	if env, err := w.pod(podOf(corev1.Container{})).Container(t.Context(), "app", Addresses{}); err != nil || len(env.Vars) > 0 {
		t.Errorf("without Services: %v, %v", env.Vars, err)
	}
}

func TestEnvFileValue(t *testing.T) {
	for _, tc := range []struct {
		name, text, key string
		want            string
		ok              bool
		fails           string
	}{
		{name: "one", text: "A='1'", key: "A", want: "1", ok: true},
		{name: "second", text: "A='1'\nB='2'\n", key: "B", want: "2", ok: true},
		{name: "none", text: "A='1'\n", key: "B"},
		{name: "empty file", text: "", key: "A"},
		{name: "first counts", text: "A='1'\nA='2'", key: "A", want: "1", ok: true},
		{name: "no escapes", text: `A='\n"$(B)#'`, key: "A", want: `\n"$(B)#`, ok: true},
		{name: "lines", text: "A='1\n\n2'\nB='3'", key: "A", want: "1\n\n2", ok: true},
		{name: "after lines", text: "A='1\n\n2'\nB='3'", key: "B", want: "3", ok: true},
		{name: "comments and blanks", text: "# A='0'\n\n  \t\n \tA='1' # one\nB='2'# two", key: "B", want: "2", ok: true},
		{name: "empty value", text: "A=''\nB='2'", key: "A", ok: true},
		{name: "blank before the quote is empty", text: "A= '1'\nB='2'", key: "A", ok: true},
		{name: "a tab before the quote is empty", text: "A=\t'1'\nB='2'", key: "A", ok: true},
		{name: "the line after an empty value", text: "A= 1\nB='2'", key: "B", want: "2", ok: true},
		{name: "the last line is a comment", text: "A='1'\n \t# end", key: "B"},
		{name: "CRLF", text: "A='1'\r\n\r\nB='2'\r\n", key: "B", want: "2", ok: true},
		{name: "CRLF in a value", text: "A='1\r\n2'\r\n", key: "A", want: "1\n2", ok: true},
		{name: "blank in a name", text: "export A='1'\nA='2'", key: "A", want: "2", ok: true},
		{name: "any name", text: "a.b-c/d='1'", key: "a.b-c/d", want: "1", ok: true},

		{name: "no value", text: "A=\nB=''", key: "B", fails: "line 1: the value is not in single quotes"},
		{name: "no quotes", text: "A=1", key: "A", fails: "line 1: the value is not in single quotes"},
		{name: "double quotes", text: "A='1'\nB=\"2\"", key: "B", fails: "line 2"},
		{name: "no =", text: "\n#\nexport", key: "A", fails: "line 3: not of the form"},
		{name: "blank before =", text: "A ='1'", key: "A", fails: "line 1: not of the form"},
		{name: "tab before =", text: "A\t='1'", key: "A", fails: "line 1: not of the form"},
		{name: "a value of two lines counts", text: "A='1\n2'\nB", key: "B", fails: "line 3: not of the form"},
		{name: "lines before =", text: "A\nB='1'", key: "B", fails: "line 1: not of the form"},
		{name: "no name", text: "='1'", key: "A", fails: "line 1: not of the form"},
		{name: "open", text: "A='1\n2", key: "A", fails: "line 1: a quote is not closed"},
		{name: "after the quote", text: "A='1\n'x", key: "A", fails: "line 2: text after the closing quote"},
		{name: "not read that far", text: "A='1'\nbroken", key: "A", want: "1", ok: true},
	} {
		got, ok, err := envFileValue(tc.text, tc.key)
		if tc.fails != "" {
			if err == nil || !strings.Contains(err.Error(), tc.fails) {
				t.Errorf("%s: got %v, want %s", tc.name, err, tc.fails)
			}
			continue
		}
		if err != nil || got != tc.want || ok != tc.ok {
			t.Errorf("%s: got %q, %v, %v", tc.name, got, ok, err)
		}
	}
}

// FuzzEnvFile: a value in quotes is read back, whatever surrounds it.
func FuzzEnvFile(f *testing.F) {
	f.Add("A", "some\nvalue", "# comment\nB='x'\n")
	f.Fuzz(func(t *testing.T, name, value, before string) {
		if _, _, err := envFileValue(before, name); err != nil {
			return // and no panic
		}
		if name == "" || strings.ContainsAny(name, "= \t\r\n#") || strings.ContainsAny(value, "'\r") {
			return
		}
		if _, defined, _ := envFileValue(before, name); defined {
			return
		}
		got, ok, err := envFileValue(before+"\n"+name+"='"+value+"'\n", name)
		if err != nil || !ok || got != value {
			t.Errorf("%q: got %q, %v, %v", before, got, ok, err)
		}
	})
}

func TestFileKeyRef(t *testing.T) {
	broken := errors.New("disk")
	ref := func(volume, path, key string, optional bool) corev1.EnvVar {
		return corev1.EnvVar{Name: "A", ValueFrom: &corev1.EnvVarSource{FileKeyRef: &corev1.FileKeySelector{VolumeName: volume, Path: path, Key: key, Optional: &optional}}}
	}
	for _, tc := range []struct {
		name  string
		env   corev1.EnvVar
		want  string
		fails string
		wait  bool
	}{
		{name: "key", env: ref("v", "dir/env", "K", false), want: "A=v"},
		{name: "empty", env: ref("v", "dir/env", "EMPTY", false), want: "A="},
		{name: "no key", env: ref("v", "dir/env", "NONE", false), fails: `env A: key "NONE" of file v/dir/env: missing`, wait: true},
		{name: "no file", env: ref("v", "none", "K", false), fails: "file v/none: missing", wait: true},
		{name: "optional key", env: ref("v", "dir/env", "NONE", true)},
		{name: "optional file", env: ref("v", "none", "K", true)},
		{name: "broken", env: ref("broken", "f", "K", true), fails: "disk", wait: true},
		{name: "no such format", env: ref("v", "text", "K", true), fails: "line 1", wait: true},
		{name: "way out", env: ref("v", "../etc/passwd", "K", false), fails: "leads out of the volume"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, func(c *Config) {
				c.ReadFile = func(_ context.Context, pod *corev1.Pod, volume, path string) ([]byte, error) {
					pod.Name = "scribble" // it is a copy
					switch {
					case volume == "broken":
						return nil, broken
					case path == "dir/env":
						return []byte("EMPTY=''\nK='v'\n"), nil
					case path == "text":
						return []byte("hello"), nil
					}
					return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
				}
			})
			p := w.pod(podOf(corev1.Container{Env: []corev1.EnvVar{tc.env}}))
			env, err := p.Container(t.Context(), "app", Addresses{})
			if p.pod.Name != "p" {
				t.Error("ReadFile got the pod itself")
			}
			if tc.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tc.fails) || CanWait(err) != tc.wait {
					t.Errorf("got %v, wait %v", err, CanWait(err))
				}
				return
			}
			if got := strings.Join(env.Strings(), ";"); err != nil || got != tc.want {
				t.Errorf("got %s, %v, want %s", got, err, tc.want)
			}
		})
	}
}

// TestServicesThatCantBeReadAreAnError says which request has failed.
func TestServicesThatCantBeReadAreAnError(t *testing.T) {
	for verb, want := range map[string]string{"get": "podenv: Service default/kubernetes: ", "list": "podenv: Services of shop: "} {
		w := newWorld(t, nil)
		w.server.Inject(apitest.Fault{Match: apitest.Match{Resource: "services", Verb: verb}, Status: statuserr.InternalError("broken")})
		p := w.pod(podOf(corev1.Container{}))
		if _, err := p.Container(t.Context(), "app", Addresses{}); err == nil || !strings.HasPrefix(err.Error(), want) || !CanWait(err) {
			t.Errorf("%s: %v, want %s", verb, err, want)
		}
	}
}

// TestALateVariableHidesThatOfAService: a reference must not get the value that is replaced later.
func TestALateVariableHidesThatOfAService(t *testing.T) {
	w := newWorld(t, nil, service(ns, "db", "10.0.0.1", corev1.ServicePort{Port: 1}))
	p := w.pod(podOf(corev1.Container{Env: []corev1.EnvVar{fieldRef("DB_SERVICE_HOST", "status.podIP"), value("URL", "$(DB_SERVICE_HOST)")}, Args: []string{"$(DB_SERVICE_HOST)", "$(DB_SERVICE_PORT)"}}))
	for _, tc := range []struct {
		addresses  Addresses
		host, args string
		late       string
	}{
		{Addresses{}, "", "$(DB_SERVICE_HOST) 1", "DB_SERVICE_HOST URL"},
		{Addresses{PodIPs: []string{"10.0.0.9"}}, "10.0.0.9", "10.0.0.9 1", ""},
	} {
		env, err := p.Container(t.Context(), "app", tc.addresses)
		if host, _ := env.Lookup("DB_SERVICE_HOST"); err != nil || host != tc.host || strings.Join(env.Args, " ") != tc.args || strings.Join(env.Late, " ") != tc.late {
			t.Errorf("host %q, args %q, late %q, %v; want %+v", host, env.Args, env.Late, err, tc)
		}
	}
}

func TestTheCacheOfServicesForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c serviceCache
		key := func(namespace string) objectKey { return objectKey{kindServices, namespace, ""} }
		c.put(key("a"), serviceEntry{read: time.Now()}, time.Minute)
		time.Sleep(time.Minute)
		c.put(key("b"), serviceEntry{read: time.Now()}, time.Minute)
		if len(c.entries) != 2 {
			t.Errorf("%d namespaces, want 2: none is too old", len(c.entries))
		}
		time.Sleep(time.Nanosecond)
		if _, ok := c.get(key("a"), time.Minute); ok {
			t.Error("a list that is too old is used")
		}
		c.put(key("c"), serviceEntry{read: time.Now()}, time.Minute)
		if _, ok := c.entries[key("a")]; ok || len(c.entries) != 2 {
			t.Errorf("%d namespaces, want 2: one is too old", len(c.entries))
		}
	})
}

// backwards is a client whose lists begin with the last Service.
type backwards struct {
	corev1client.ServicesGetter
	corev1client.ServiceInterface
}

func (b backwards) Services(namespace string) corev1client.ServiceInterface {
	b.ServiceInterface = b.ServicesGetter.Services(namespace)
	return b
}

func (b backwards) List(ctx context.Context, opts metav1.ListOptions) (*corev1.ServiceList, error) {
	list, err := b.ServiceInterface.List(ctx, opts)
	if err == nil {
		slices.Reverse(list.Items)
	}
	return list, err
}

// TestServicesAreSorted whatever the order of the list: the last definition of a name counts.
func TestServicesAreSorted(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Services = backwards{ServicesGetter: c.Services} },
		service(ns, "a", "10.0.0.1", corev1.ServicePort{Port: 1}), service(ns, "b", "10.0.0.2", corev1.ServicePort{Port: 2}))
	env, err := w.pod(podOf(corev1.Container{})).Container(t.Context(), "app", Addresses{})
	if err != nil || len(env.Vars) == 0 || env.Vars[0].Name != "A_SERVICE_HOST" {
		t.Errorf("%v, %v", env.Vars, err)
	}
}

// TestAServiceWithoutAProtocolHasTCP: the API server fills it in, but another source may not.
func TestAServiceWithoutAProtocolHasTCP(t *testing.T) {
	got := varsOf(service(ns, "a-b", "10.0.0.1", corev1.ServicePort{Port: 80}, corev1.ServicePort{Port: 81, Name: "x-y", Protocol: "SCTP"}))
	want := []Var{{"A_B_SERVICE_HOST", "10.0.0.1"}, {"A_B_SERVICE_PORT", "80"}, {"A_B_PORT", "tcp://10.0.0.1:80"},
		{"A_B_PORT_80_TCP", "tcp://10.0.0.1:80"}, {"A_B_PORT_80_TCP_PROTO", "tcp"}, {"A_B_PORT_80_TCP_PORT", "80"}, {"A_B_PORT_80_TCP_ADDR", "10.0.0.1"},
		{"A_B_SERVICE_PORT_X_Y", "81"},
		{"A_B_PORT_81_SCTP", "sctp://10.0.0.1:81"}, {"A_B_PORT_81_SCTP_PROTO", "sctp"}, {"A_B_PORT_81_SCTP_PORT", "81"}, {"A_B_PORT_81_SCTP_ADDR", "10.0.0.1"}}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// envFileValue returns the value of one variable of an environment file.
func envFileValue(text, key string) (value string, ok bool, err error) {
	f := parseEnvFile(text, map[string]bool{key: true})
	if value, ok = f.values[key]; ok {
		return value, true, nil
	}
	return "", false, f.err
}
