// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"context"
	"fmt"
	"hash/fnv"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kubewright/kubewright/apitest"
)

func hashOf(name string) string {
	h := fnv.New32a()
	fmt.Fprint(h, name)
	return fmt.Sprintf("%08x", h.Sum32())
}

// hashing is a program that keeps a leader and a follower with generated names. Much of what it
// writes is derived from the hashes of these names: an annotation of each child, the selector of
// the pool, and the name of a further object for each child.
func hashing(bug string) func(w *World) Scenario {
	return func(w *World) Scenario {
		pool := w.Server.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "pool"}}).(*corev1.ConfigMap)
		owners := []metav1.OwnerReference{*metav1.NewControllerRef(pool, corev1.SchemeGroupVersion.WithKind("ConfigMap"))}
		reconcile := func(ctx context.Context, p *Process) error {
			client := kubernetes.NewForConfigOrDie(p.Config)
			maps, secrets := client.CoreV1().ConfigMaps("default"), client.CoreV1().Secrets("default")
			pool, err := maps.Get(ctx, "pool", metav1.GetOptions{})
			if err != nil {
				return err
			}
			want := map[string]bool{} // the names of Secrets
			for _, role := range []string{"leader", "follower"} {
				list, err := maps.List(ctx, metav1.ListOptions{LabelSelector: "role=" + role})
				if err != nil {
					return err
				}
				if len(list.Items) == 0 {
					child := &corev1.ConfigMap{
						ObjectMeta: metav1.ObjectMeta{GenerateName: "child-", Labels: map[string]string{"role": role}, OwnerReferences: owners},
						Data:       map[string]string{"size": "1"},
					}
					if bug == "small" && role == "leader" && pool.Data["selector"] != "" {
						child.Data["size"] = "0"
					}
					if child, err = maps.Create(ctx, child, metav1.CreateOptions{}); err != nil {
						return err
					}
					list.Items = append(list.Items, *child)
				}
				child := list.Items[0]
				hash := hashOf(child.Name)
				want["for-"+hash] = true
				if child.Annotations["hash"] != hash {
					child.Annotations = map[string]string{"hash": hash}
					if _, err := maps.Update(ctx, &child, metav1.UpdateOptions{}); err != nil {
						return err
					}
				}
				secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "for-" + hash, OwnerReferences: owners}, StringData: map[string]string{"role": role}}
				if _, err := secrets.Create(ctx, secret, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
					return err
				}
				if role == "leader" && pool.Data["selector"] != "hash="+hash {
					pool.Data = map[string]string{"selector": "hash=" + hash}
					if pool, err = maps.Update(ctx, pool, metav1.UpdateOptions{}); err != nil {
						return err
					}
				}
			}
			all, err := secrets.List(ctx, metav1.ListOptions{})
			if err != nil || bug == "kept" {
				return err
			}
			for _, s := range all.Items {
				if !want[s.Name] {
					if err := secrets.Delete(ctx, s.Name, metav1.DeleteOptions{}); err != nil {
						return err
					}
				}
			}
			return nil
		}
		return Scenario{
			Programs: []Program{{Name: "p", Run: func(ctx context.Context, p *Process) error {
				for ; ctx.Err() == nil; time.Sleep(time.Second) {
					_ = reconcile(ctx, p)
				}
				return nil
			}}},
			Steps: []Step{{Name: "ready", Until: func() bool { return len(apitest.List[*corev1.Secret](w.Server, "default")) == 2 }}},
		}
	}
}

// What a program derives from a generated name may differ after a fault, because a fault can
// change the order in which names are generated. All else may not.
func TestDerivedFromGeneratedNames(t *testing.T) {
	cfg := Config{InProcess: true, Settle: 10 * time.Second, Deadline: time.Minute, Faults: slices.DeleteFunc(Faults(), func(f Fault) bool {
		return !slices.Contains([]string{"delete", "crash after", "500"}, f.Name)
	})}
	for bug, want := range map[string]string{
		"":      "",
		"small": `.data.size: "0", in the reference "1"`,
		"kept":  "Secret default/* (3 of them): exists, but not in the reference",
	} {
		t.Run(bug, func(t *testing.T) {
			report := Find(t, cfg, hashing(bug))
			if report.Plans == 0 || bug == "" != (len(report.Findings) == 0) {
				t.Errorf("%d plans, %d findings", report.Plans, len(report.Findings))
			}
			for _, f := range report.Findings {
				if !strings.HasPrefix(f.Plan, "delete ConfigMap default/child-") || !strings.Contains(f.Problem, want) {
					t.Errorf("%s: %s, want %s", f.Plan, f.Problem, want)
				}
			}
		})
	}
	l := &lab{t: t, cfg: cfg.withDefaults(), scenario: hashing("")}
	if err := l.prepare(); err != nil {
		t.Fatal(err)
	}
	slices.Sort(l.cfg.Ignore)
	if want := []string{"ConfigMap.data.selector", "ConfigMap.metadata.annotations.hash"}; !slices.Equal(slices.Compact(l.cfg.Ignore), want) {
		t.Errorf("%q may differ, want %q", l.cfg.Ignore, want)
	}
	if want := (fixedNames{"Secret default/": {}}); !reflect.DeepEqual(l.names, want) {
		t.Errorf("the fixed names are %v, want %v", l.names, want)
	}
}
