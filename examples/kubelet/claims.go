// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourcev1client "k8s.io/client-go/kubernetes/typed/resource/v1"

	"github.com/kubewright/kubewright/podsync"
)

// claims finds out which CPUs the scheduler has allocated for a container. A
// kubelet on a real machine asks the driver instead (NodePrepareResources), which
// does the same.
type claims struct {
	client   resourcev1client.ResourceClaimsGetter
	nodeName string
}

// cpus returns the numbers of the CPUs in the claims of a container.
func (c claims) cpus(ctx context.Context, pod *corev1.Pod, container *corev1.Container) (numbers []int, err error) {
	for _, wanted := range container.Resources.Claims {
		name, err := claimName(pod, wanted.Name)
		if err != nil {
			return nil, err
		}
		if name == "" {
			continue
		}
		claim, err := c.client.ResourceClaims(pod.Namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		of, err := c.allocated(claim, pod, wanted.Request)
		if err != nil {
			return nil, err
		}
		numbers = append(numbers, of...)
	}
	slices.Sort(numbers)
	return slices.Compact(numbers), nil
}

// claimName returns the name of the ResourceClaim that a pod refers to as called:
// an existing one, or the one that was created from a template. It returns "" if
// the status says that no claim was needed.
func claimName(pod *corev1.Pod, called string) (string, error) {
	for _, ref := range pod.Spec.ResourceClaims {
		if ref.Name == called && ref.ResourceClaimName != nil {
			return *ref.ResourceClaimName, nil
		}
	}
	for _, made := range pod.Status.ResourceClaimStatuses {
		switch {
		case made.Name != called:
		case made.ResourceClaimName == nil:
			return "", nil
		default:
			return *made.ResourceClaimName, nil
		}
	}
	return "", fmt.Errorf("resource claim %s has not been created yet", called)
}

// allocated returns the CPUs that a claim has for a pod, all of them or those of
// one request.
func (c claims) allocated(claim *resourcev1.ResourceClaim, pod *corev1.Pod, request string) (numbers []int, err error) {
	mine := func(r resourcev1.ResourceClaimConsumerReference) bool { return r.UID == pod.UID }
	if claim.Status.Allocation == nil || !slices.ContainsFunc(claim.Status.ReservedFor, mine) {
		return nil, fmt.Errorf("resource claim %s is not allocated to the pod", claim.Name)
	}
	for _, result := range claim.Status.Allocation.Devices.Results {
		if request != "" && result.Request != request && !strings.HasPrefix(result.Request, request+"/") {
			continue
		}
		if result.Driver != cpuDriver || result.Pool != c.nodeName {
			return nil, podsync.Reject("Unsupported", fmt.Sprintf("resource claim %s: no device of driver %s here", claim.Name, result.Driver))
		}
		n, err := strconv.Atoi(strings.TrimPrefix(result.Device, devicePrefix))
		if err != nil {
			return nil, podsync.Reject("Unsupported", fmt.Sprintf("resource claim %s: no device %s here", claim.Name, result.Device))
		}
		numbers = append(numbers, n)
	}
	return numbers, nil
}
