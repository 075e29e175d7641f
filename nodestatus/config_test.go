// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
)

// noClient is a client for tests that make no call.
type noClient struct{ corev1client.NodesGetter }

func TestNewFillsInDefaults(t *testing.T) {
	c, err := New(Config{Client: noClient{}, NodeName: node1})
	if err != nil {
		t.Fatal(err)
	}
	cfg := c.cfg
	for name, same := range map[string]bool{
		"SyncInterval":    cfg.SyncInterval == DefaultSyncInterval,
		"ReportInterval":  cfg.ReportInterval == DefaultReportInterval,
		"GracePeriod":     cfg.GracePeriod == DefaultGracePeriod,
		"ShutdownTimeout": cfg.ShutdownTimeout == DefaultShutdownTimeout,
		"Workers":         cfg.Workers == DefaultWorkers,
		"Name":            cfg.Name == DefaultName && c.Name() == DefaultName,
	} {
		if !same {
			t.Errorf("%s has not its default: %+v", name, cfg)
		}
	}
	slow, err := New(Config{Client: noClient{}, NodeName: node1, SyncInterval: time.Hour})
	if err != nil || slow.cfg.ReportInterval != time.Hour {
		t.Errorf("with SyncInterval of an hour: %v; ReportInterval defaults to %v", err, slow.cfg.ReportInterval)
	}
}

func TestNewCopiesItsConfig(t *testing.T) {
	setters := []Setter{func(context.Context, *corev1.Node) error { return nil }}
	tmpl := template()
	c, err := New(Config{Client: noClient{}, NodeName: node1, Template: tmpl, Setters: setters})
	if err != nil {
		t.Fatal(err)
	}
	setters[0] = nil
	tmpl.Labels["later"] = "x"
	if c.cfg.Setters[0] == nil || c.cfg.Template.Labels["later"] != "" {
		t.Error("the controller shares memory with the Config it was made from")
	}
}

func TestNewReportsEveryProblemByItsField(t *testing.T) {
	ok := func(edit func(*Config)) Config {
		cfg := Config{Client: noClient{}, NodeName: node1}
		edit(&cfg)
		return cfg
	}
	for _, tc := range []struct {
		name string
		cfg  Config
		want []string
	}{
		{"no client", Config{NodeName: node1}, []string{"Client: Required value"}},
		{"no name", ok(func(c *Config) { c.NodeName = "" }), []string{"NodeName: Required value", "unless Fleet"}},
		{"bad name of a fleet's first node", ok(func(c *Config) { c.NodeName, c.Fleet = "Node_1", true }), []string{"NodeName: Invalid value"}},
		{"bad name", ok(func(c *Config) { c.NodeName = "Node_1" }), []string{"NodeName: Invalid value"}},
		{"short interval", ok(func(c *Config) { c.SyncInterval = time.Millisecond }), []string{"SyncInterval: Invalid value"}},
		{"negative", ok(func(c *Config) { c.ShutdownTimeout, c.Workers = -1, -1 }), []string{"ShutdownTimeout: Invalid value", "Workers: Invalid value"}},
		{"reports more often than rounds", ok(func(c *Config) { c.ReportInterval = time.Second }), []string{"ReportInterval: Invalid value", "SyncInterval, which is 10s"}},
		{"nil functions", ok(func(c *Config) { c.Setters, c.HealthChecks = []Setter{nil}, []HealthCheck{nil} }), []string{"Setters[0]: Required value", "HealthChecks[0]: Required value"}},
		{"no policies", ok(func(c *Config) { c.OnDeleted, c.OnShutdown = 3, 9 }), []string{"OnDeleted: Unsupported value", "OnShutdown: Unsupported value"}},
		{"a node can't unregister itself", ok(func(c *Config) { c.NodeCredentials, c.OnShutdown = true, ShutdownUnregister }), []string{"OnShutdown: Forbidden"}},
		{"template of another node", ok(func(c *Config) { c.Template = &corev1.Node{}; c.Template.Name = "n2" }), []string{"Template.Name: Invalid value"}},
		{"generated name", ok(func(c *Config) { c.Template = &corev1.Node{}; c.Template.GenerateName = "n-" }), []string{"Template.GenerateName: Forbidden"}},
		{"labels", ok(func(c *Config) { c.Template = template(); c.Template.Labels["a b"] = "!" }), []string{`Template: Forbidden: label "a b"`}},
		{"annotations", ok(func(c *Config) { c.Template = template(); c.Template.Annotations["a b"] = "" }), []string{`Template: Forbidden: annotation "a b"`}},
		{"labels that a node may not set", ok(func(c *Config) {
			c.NodeCredentials, c.Template = true, template()
			c.Template.Labels["node-role.kubernetes.io/virtual"] = ""
			c.Template.Labels["node-restriction.kubernetes.io/x"] = ""
		}), []string{`Template: Forbidden: label "node-restriction.kubernetes.io/x": node credentials may not set it`, `label "node-role.kubernetes.io/virtual"`}},
		{"config source", ok(func(c *Config) {
			c.NodeCredentials, c.Template = true, template()
			//lint:ignore SA1019 a refused field must be set
			c.Template.Spec.ConfigSource = &corev1.NodeConfigSource{}
		}), []string{"Template.Spec.ConfigSource: Forbidden"}},
		{"taints", ok(func(c *Config) {
			c.Template = template()
			c.Template.Spec.Taints = []corev1.Taint{{Key: "", Effect: "Sometimes"}, {Key: "a", Effect: "Sometimes"}}
		}), []string{"Template: Forbidden: taint :Sometimes", "Template: Forbidden: taint a:Sometimes: has the effect"}},
		{"owners", ok(func(c *Config) {
			c.Template = template()
			c.Template.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Machine", Name: "m"}}
		}), []string{"Template.OwnerReferences[0].uid: Required value"}},
		{"finalizers", ok(func(c *Config) {
			c.Template = template()
			c.Template.Finalizers = []string{"example.com/a", "orphan", "a b", "mine"}
		}), []string{`Template.Finalizers: Invalid value: "a b"`, `Template.Finalizers[3]: Invalid value: "mine"`}},
		{"Pod CIDRs", ok(func(c *Config) {
			c.Template = template()
			c.Template.Spec.PodCIDR, c.Template.Spec.PodCIDRs = "10.0.0.0/24", []string{"10.0.0.0/24", "10.0.0.0/33", "fd00::/64"}
		}), []string{"Template.Spec.PodCIDRs[1]: Invalid value"}},
		{"a Pod CIDR", ok(func(c *Config) {
			c.Template = template()
			c.Template.Spec.PodCIDR = "10.0.0.0"
		}), []string{"Template.Spec.PodCIDRs[0]: Invalid value"}},
		{"Pod CIDRs of one family", ok(func(c *Config) {
			c.Template = template()
			c.Template.Spec.PodCIDRs = []string{"10.0.0.0/24", "10.0.1.0/24"}
		}), []string{"Template.Spec.PodCIDRs: Invalid value", "at most one for each IP family"}},
		{"taints to keep", ok(func(c *Config) {
			c.KeepTaints = []corev1.Taint{{Key: "", Effect: "Sometimes"}, {Key: "a", Effect: "Sometimes"}}
		}), []string{"KeepTaints: Forbidden: taint :Sometimes", "KeepTaints: Forbidden: taint a:Sometimes: has the effect"}},
		{"a node can't keep taints", ok(func(c *Config) {
			c.NodeCredentials, c.KeepTaints = true, []corev1.Taint{{Key: "a", Effect: corev1.TaintEffectNoSchedule}}
		}), []string{"KeepTaints: Forbidden"}},
		{"conditions", ok(func(c *Config) {
			c.Template = template()
			c.Template.Status.Conditions = []corev1.NodeCondition{{Type: "Mine"}}
		}), []string{"Template.Status.Conditions: Invalid value", `status ""`}},
		{"Ready in the Template", ok(func(c *Config) {
			c.Template = template()
			SetCondition(c.Template, corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue})
		}), []string{"Template.Status.Conditions[0]: Forbidden"}},
		{"all at once", Config{NodeName: "!", Workers: -1, OnDeleted: 7}, []string{"Client", "NodeName", "Workers", "OnDeleted"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := New(tc.cfg)
			if err == nil {
				t.Fatal("New has nothing against it")
			}
			if !strings.HasPrefix(err.Error(), "nodestatus: invalid config: ") {
				t.Errorf("the error is %v", err)
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not say %q", err, want)
				}
			}
			var all utilerrors.Aggregate
			if !errors.As(err, &all) {
				t.Errorf("%T is no aggregate", err)
			}
		})
	}
}

// TestNewAcceptsWhatTheAPIServerAccepts: fields that have an effect only at the creation.
func TestNewAcceptsWhatTheAPIServerAccepts(t *testing.T) {
	for name, edit := range map[string]func(*corev1.Node){
		"an owner": func(n *corev1.Node) {
			n.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Machine", Name: "m", UID: "u"}}
		},
		"finalizers": func(n *corev1.Node) { n.Finalizers = []string{"example.com/a", "orphan"} },
		"a Pod CIDR": func(n *corev1.Node) { n.Spec.PodCIDR = "10.0.0.0/24" },
		"Pod CIDRs":  func(n *corev1.Node) { n.Spec.PodCIDRs = []string{"10.0.0.0/24", "fd00::/64"} },
		"both of them": func(n *corev1.Node) {
			n.Spec.PodCIDR, n.Spec.PodCIDRs = "fd00::/64", []string{"fd00::/64", "10.0.0.0/24"}
		},
		"another Pod CIDR than the first": func(n *corev1.Node) {
			n.Spec.PodCIDR, n.Spec.PodCIDRs = "10.0.1.0/24", []string{"10.0.0.0/24", "10.0.0.0/33"}
		},
		"an address for a Pod CIDR": func(n *corev1.Node) { n.Spec.PodCIDR = "010.0.0.1/24" },
	} {
		tmpl := template()
		edit(tmpl)
		if _, err := New(Config{Client: noClient{}, NodeName: node1, Template: tmpl}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAFleetNeedsNoFirstNode(t *testing.T) {
	c, err := New(Config{Client: noClient{}, Fleet: true})
	if err != nil {
		t.Fatal(err)
	}
	if n := c.nodes.Len(); n != 0 {
		t.Errorf("%d nodes from the start, want none", n)
	}
	if err := c.Add(""); err == nil {
		t.Error("Add has nothing against an empty node name")
	}
}

func TestNamesOfConstants(t *testing.T) {
	for _, tc := range []struct{ got, want string }{
		{DeletedExit.String(), "Exit"}, {DeletedReregister.String(), "Reregister"}, {DeletedIdle.String(), "Idle"}, {DeletedPolicy(9).String(), "Invalid(9)"},
		{ShutdownLeave.String(), "Leave"}, {ShutdownNotReady.String(), "NotReady"}, {ShutdownUnregister.String(), "Unregister"},
		{PhaseRegistering.String(), "Registering"}, {PhaseRegistered.String(), "Registered"}, {PhaseDeleted.String(), "Deleted"},
	} {
		if tc.got != tc.want {
			t.Errorf("%q, want %q", tc.got, tc.want)
		}
	}
}
