// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"slices"
	"strings"
	"testing"
)

var testLayout = layout{dir: "/run/x", ports: map[string]int{Etcd: 1, etcdPeer: 2, APIServer: 3, ControllerManager: 4, Scheduler: 5}}

func TestArguments(t *testing.T) {
	for name, tc := range map[string]struct {
		options   Options
		component string
		want      []string // arguments that must be present
		not       []string // prefixes that no argument may have
	}{
		"API server": {
			component: APIServer,
			want: []string{
				"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--secure-port=3", "--permit-port-sharing",
				"--etcd-servers=http://127.0.0.1:1", "--endpoint-reconciler-type=none", "--advertise-address=127.0.0.1",
			},
			not: []string{"--audit", "--feature-gates", "--runtime-config", "--disable-admission-plugins"},
		},
		"etcd": {
			component: Etcd,
			want: []string{
				"--listen-client-urls=http://127.0.0.1:1", "--initial-cluster=default=http://127.0.0.1:2", "--data-dir=/run/x/etcd",
				"--unsafe-no-fsync", "--socket-reuse-port",
			},
		},
		"controller manager": {
			component: ControllerManager,
			want: []string{
				"--use-service-account-credentials", "--kube-api-qps=500", "--kube-api-burst=1000", "--secure-port=4",
				"--kubeconfig=/run/x/kube-controller-manager.kubeconfig", "--leader-elect=false",
			},
		},
		"scheduler": {
			component: Scheduler,
			want:      []string{"--secure-port=5", "--kubeconfig=/run/x/kube-scheduler.kubeconfig", "--permit-port-sharing"},
		},
		"audit": {
			options:   Options{Audit: true},
			component: APIServer,
			want:      []string{"--audit-log-path=/run/x/audit.log", "--audit-policy-file=/run/x/audit-policy.yaml", "--audit-log-mode=blocking"},
		},
		"without the controller manager there are no ServiceAccounts": {
			options:   Options{Without: []string{Scheduler, ControllerManager}},
			component: APIServer,
			want:      []string{"--disable-admission-plugins=ServiceAccount"},
		},
		"served versions": {
			options:   Options{RuntimeConfig: "a/v1=false"},
			component: APIServer,
			want:      []string{"--runtime-config=a/v1=false"},
		},
		"gates of all": {
			options:   Options{FeatureGates: "A=true"},
			component: Scheduler,
			want:      []string{"--feature-gates=A=true"},
		},
		"gates are none of etcd's business": {
			options:   Options{FeatureGates: "A=true"},
			component: Etcd,
			not:       []string{"--feature-gates"},
		},
		"gates of a single process are given once": {
			options:   Options{FeatureGates: "A=true", SingleProcess: true},
			component: Scheduler,
			not:       []string{"--feature-gates"},
		},
	} {
		got := arguments(tc.options, testLayout)[tc.component]
		for _, want := range tc.want {
			if !slices.Contains(got, want) {
				t.Errorf("%s: no %s among %q", name, want, got)
			}
		}
		for _, prefix := range tc.not {
			if i := slices.IndexFunc(got, func(arg string) bool { return strings.HasPrefix(arg, prefix) }); i >= 0 {
				t.Errorf("%s: there is %s", name, got[i])
			}
		}
	}
}

func TestExtraArgumentsOverride(t *testing.T) {
	o := Options{FeatureGates: "A=true", ExtraArgs: map[string][]string{
		APIServer: {"--authorization-mode=RBAC", "--v=4", "--feature-gates=B=true", "--allow-privileged=false"},
	}}
	counts := map[string]int{}
	for _, arg := range arguments(o, testLayout)[APIServer] {
		counts[arg]++
		counts[flagName(arg)]++
	}
	for want, n := range map[string]int{
		"--authorization-mode=RBAC": 1, "--authorization-mode": 1, "--v=4": 1, "--allow-privileged": 1, "--allow-privileged=false": 1,
		"--feature-gates=A=true": 1, "--feature-gates=B=true": 1,
	} {
		if counts[want] != n {
			t.Errorf("%s occurs %d times, want %d", want, counts[want], n)
		}
	}
}

func TestSingleArguments(t *testing.T) {
	o := Options{SingleProcess: true, Without: []string{Scheduler}, FeatureGates: "A=true"}
	var programs []string
	gates := 0
	args := singleArguments(o, testLayout)
	for i, arg := range args {
		if arg == "--" {
			programs = append(programs, args[i+1])
		}
		if strings.HasPrefix(arg, "--feature-gates") {
			gates++
		}
	}
	if want := []string{Etcd, APIServer, ControllerManager}; !slices.Equal(programs, want) || gates != 1 {
		t.Errorf("programs %q, want %q; %d times gates", programs, want, gates)
	}
	if args[0] != "--" {
		t.Errorf("first argument %q", args[0])
	}
}

func TestExtraInstances(t *testing.T) {
	o := Options{
		SingleProcess: true, Without: []string{ControllerManager, Scheduler}, FeatureGates: "A=true",
		Extra:     []string{"kube-scheduler-2", "kube-controller-manager-b"},
		ExtraArgs: map[string][]string{Scheduler: {"--leader-elect=true", "--v=3", "--feature-gates=B=true"}, "kube-scheduler-2": {"--v=4"}},
	}
	if err := o.Validate(); err != nil {
		t.Fatal(err)
	}
	l := testLayout
	l.ports = map[string]int{"kube-scheduler-2": 6, "kube-controller-manager-b": 7}
	args := arguments(o, l)
	for name, want := range map[string][]string{
		"kube-scheduler-2":          {"--secure-port=6", "--kubeconfig=/run/x/kube-scheduler.kubeconfig", "--leader-elect=true", "--v=4", "--feature-gates=A=true"},
		"kube-controller-manager-b": {"--secure-port=7", "--kubeconfig=/run/x/kube-controller-manager.kubeconfig", "--leader-elect=false", "--use-service-account-credentials"},
	} {
		for _, arg := range want {
			if !slices.Contains(args[name], arg) {
				t.Errorf("%s: no %s among %q", name, arg, args[name])
			}
		}
	}
	if slices.Contains(args["kube-scheduler-2"], "--v=3") {
		t.Errorf("the component's argument is not replaced: %q", args["kube-scheduler-2"])
	}
	if args[Scheduler] != nil || args[ControllerManager] != nil {
		t.Error("arguments of a component that doesn't run")
	}
	if got, want := o.starting(), []string{All}; !slices.Equal(got, want) {
		t.Errorf("%q start, want %q", got, want)
	}
	if got, want := o.processes(), []string{All, "kube-scheduler-2", "kube-controller-manager-b"}; !slices.Equal(got, want) {
		t.Errorf("processes %q, want %q", got, want)
	}
	for _, name := range []string{Scheduler, Scheduler + "-", Etcd + "-2", "scheduler-2", ""} {
		if err := (Options{Extra: []string{name}}).Validate(); err == nil {
			t.Errorf("a further instance %q was accepted", name)
		}
	}
	if err := (Options{Extra: []string{"kube-scheduler-2", "kube-scheduler-2"}}).Validate(); err == nil {
		t.Error("the same instance twice was accepted")
	}
}

func TestProcesses(t *testing.T) {
	if got := (Options{}).processes(); !slices.Equal(got, components) {
		t.Errorf("processes %q", got)
	}
	if got := (Options{SingleProcess: true}).processes(); !slices.Equal(got, []string{All}) {
		t.Errorf("processes %q", got)
	}
	c := &Cluster{options: Options{Without: []string{Scheduler}}}
	err := c.each(Scheduler, func(string) error { return nil })
	if err == nil || !strings.Contains(err.Error(), `no process "kube-scheduler"; there are etcd, kube-apiserver, kube-controller-manager`) {
		t.Errorf("error %v", err)
	}
}

func TestIssueWantsOneIdentity(t *testing.T) {
	c := &Cluster{}
	for _, id := range []Identity{
		{}, {Node: "a", User: "b"}, {ServiceAccount: "a"}, {Namespace: "a"}, {Node: "a", Namespace: "b", ServiceAccount: "c"},
	} {
		if _, err := c.Issue(t.Context(), id); err == nil {
			t.Errorf("credentials for %+v", id)
		}
	}
}
