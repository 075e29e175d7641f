// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package coordinator

import (
	"errors"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/kubewright/kubewright/apitest"
	"github.com/kubewright/kubewright/election"
)

func controllerConfig() (Config, kubernetes.Interface) {
	cs := apitest.New(apitest.Options{}).Client(apitest.User{})
	return Config{Client: cs.CoordinationV1(), Candidates: cs.CoordinationV1beta1()}, cs
}

func TestControllerConfigDefaults(t *testing.T) {
	cfg, _ := controllerConfig()
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if c.Name() != DefaultName {
		t.Errorf("the name is %q", c.Name())
	}
	for _, s := range []election.Strategy{election.OldestEmulationVersion(), election.First(), election.NewestVersion()} {
		if c.rules.Strategies[s.Name()] == nil {
			t.Errorf("%s is not carried out", s.Name())
		}
	}
}

func TestControllerConfigProblems(t *testing.T) {
	var invalid Config
	invalid.Namespace = "Not A Name"
	invalid.Strategies = []election.Strategy{nil, election.StrategyFunc("no domain", nil), election.OldestEmulationVersion()}
	_, err := New(invalid)
	if err == nil {
		t.Fatal("no error")
	}
	for _, field := range []string{
		"Client", "Candidates", "Namespace", "Strategies[0]", "Strategies[1]", "Strategies[2]",
	} {
		if !strings.Contains(err.Error(), field+":") {
			t.Errorf("%s is not named in %v", field, err)
		}
	}
	for _, ns := range []string{"a", "Not A Name", "kube-node-lease"} {
		cfg, _ := controllerConfig()
		cfg.Namespace = ns
		if _, err := New(cfg); (err == nil) != (ns == "a") {
			t.Errorf("Namespace %q: %v", ns, err)
		}
	}
}

func TestControllerRunsOnce(t *testing.T) {
	ctlBubble(func(r *ctlRig) {
		c := r.start()
		if err := c.Run(r.Context()); !errors.Is(err, ErrAlreadyRun) {
			t.Errorf("Run = %v", err)
		}
	})(t)
}

// TestControllerNamespace: a list and a watch of one namespace, and none of others.
func TestControllerNamespace(t *testing.T) {
	ctlBubble(func(r *ctlRig) {
		r.cfg.Namespace = ctlNamespace
		r.start()
		r.stub("a", "1.19.0", "1.19.0").start()
		r.want("holder", r.holder(), "a")
		for _, q := range r.server.Requests(apitest.Match{User: ctlUser}) {
			if q.Namespace != ctlNamespace || q.FieldSelector != "" {
				t.Errorf("%s %s in %q with selector %q", q.Verb, q.Resource, q.Namespace, q.FieldSelector)
			}
		}
	})(t)
	ctlBubble(func(r *ctlRig) {
		r.cfg.Namespace = "kube-system"
		r.start()
		r.stub("a", "1.19.0", "1.19.0").start()
		r.advance(time.Hour)
		r.want("requests", r.requests(), []string{})
	})(t)
}

// TestControllerPermissions: the permissions of the package comment are sufficient.
func TestControllerPermissions(t *testing.T) {
	ctlBubble(func(r *ctlRig) {
		allowed := map[string]bool{}
		for _, verb := range []string{"get", "list", "watch", "create", "patch"} {
			allowed[verb+" leases"] = true
		}
		for _, verb := range []string{"get", "list", "watch", "patch", "delete"} {
			allowed[verb+" leasecandidates"] = true
		}
		r.start()
		a := r.stub("a", "1.20.0", "1.20.0").start()
		r.server.Inject(apitest.Fault{Match: apitest.Match{User: ctlUser, Verb: "patch"}, Skip: 1, Times: 3, LoseResponse: true})
		r.advance(time.Minute)
		r.stub("b", "1.19.0", "1.19.0").start()
		r.advance(time.Minute)
		a.stop()
		r.advance(time.Hour)
		for _, q := range r.server.Requests(apitest.Match{User: ctlUser}) {
			if !allowed[q.Verb+" "+q.Resource] {
				t.Errorf("%s %s", q.Verb, q.Resource)
			}
		}
	})(t)
}
