// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package planted

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// leaving makes and deletes the claims of members that another controller makes. It
// deletes a claim only if it has seen that the member was leaving.
func leaving(ctx context.Context, cfg *rest.Config, mended bool) error {
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	o := &operator{client, mended}
	var mu sync.Mutex
	seen := map[string]bool{}
	return o.watchMaps(ctx, cache.ResourceEventHandlerFuncs{UpdateFunc: func(_, now any) {
		mu.Lock()
		defer mu.Unlock()
		if m := now.(*corev1.ConfigMap); m.Annotations["leaving"] != "" {
			seen[m.Name] = true
		}
	}}, func(maps map[string]*corev1.ConfigMap) {
		db := maps["db"]
		if db == nil {
			return
		}
		for i := range 2 {
			mu.Lock()
			left := seen[member(i)]
			mu.Unlock()
			switch {
			case i < number(db, "replicas"):
				_ = o.createClaim(ctx, i)
			case maps[member(i)] == nil && (left || mended):
				if has, err := o.hasClaim(ctx, i); has && err == nil {
					_ = o.deleteClaim(ctx, i)
				}
			}
		}
	})
}

// oneByOne deletes the member above the new number of replicas when it sees the number
// change. If it does not see a number between two others, a member is left.
func oneByOne(ctx context.Context, cfg *rest.Config, mended bool) error {
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	o := &operator{client, mended}
	var mu sync.Mutex
	surplus := map[int]bool{}
	return o.watchMaps(ctx, cache.ResourceEventHandlerFuncs{UpdateFunc: func(old, now any) {
		mu.Lock()
		defer mu.Unlock()
		a, b := old.(*corev1.ConfigMap), now.(*corev1.ConfigMap)
		if b.Name == "db" && number(b, "replicas") < number(a, "replicas") {
			surplus[number(b, "replicas")] = true
		}
	}}, func(maps map[string]*corev1.ConfigMap) {
		db := maps["db"]
		if db == nil {
			return
		}
		for i := range 3 {
			mu.Lock()
			remove := surplus[i] || mended
			mu.Unlock()
			switch {
			case i < number(db, "replicas") && maps[member(i)] == nil:
				_ = o.createMember(ctx, i)
			case i >= number(db, "replicas") && maps[member(i)] != nil && remove:
				_ = o.deleteMember(ctx, i)
			}
		}
	})
}
