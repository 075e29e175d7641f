// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// A CloudInstance is the machine of a node as its cloud describes it.
type CloudInstance struct {
	// ProviderID is spec.providerID of the Node, as PROVIDER://ID. It takes effect
	// when the Node is created. Empty: unknown.
	ProviderID string
	// Addresses are the addresses of the node.
	Addresses []corev1.NodeAddress
	// Type, Zone and Region are the labels node.kubernetes.io/instance-type,
	// topology.kubernetes.io/zone and topology.kubernetes.io/region. Empty: no label.
	Type, Zone, Region string
}

// Cloud returns a Setter for a node whose cloud the program asks itself, such as a
// metadata service of the machine. An error of instance, or an instance without an
// address, keeps the last values. For a cloud with a cloud controller manager use
// [ExternalCloud].
func Cloud(instance func(ctx context.Context, nodeName string) (CloudInstance, error)) Setter {
	return func(ctx context.Context, node *corev1.Node) error {
		i, err := instance(ctx, node.Name)
		if err != nil {
			return err
		}
		if len(i.Addresses) == 0 {
			return errors.New("the cloud knows no address of the instance")
		}
		if i.ProviderID != "" && !strings.Contains(i.ProviderID, "://") {
			return fmt.Errorf("provider ID %q is not of the form PROVIDER://ID", i.ProviderID)
		}
		if i.ProviderID != "" {
			node.Spec.ProviderID = i.ProviderID
		}
		for key, value := range map[string]string{
			corev1.LabelInstanceTypeStable: i.Type, corev1.LabelTopologyZone: i.Zone, corev1.LabelTopologyRegion: i.Region,
		} {
			if value != "" {
				node.Labels = with(node.Labels, key, value)
			}
		}
		return Addresses(i.Addresses...)(ctx, node)
	}
}

// with returns entries with one more.
func with(entries map[string]string, key, value string) map[string]string {
	if entries == nil {
		entries = make(map[string]string)
	}
	entries[key] = value
	return entries
}

const (
	// taintUninitialized is the taint that a cloud controller manager removes when it
	// has initialized the Node: k8s.io/cloud-provider/api.TaintExternalCloudProvider.
	taintUninitialized = "node.cloudprovider.kubernetes.io/uninitialized"
	// annotationProvidedIP tells a cloud controller manager the addresses that it must
	// find among those of the instance: AnnotationAlphaProvidedIPAddr of that package.
	annotationProvidedIP = "alpha.kubernetes.io/provided-node-ip"
)

// ExternalCloud returns a Setter for a node that a cloud controller manager
// initializes, as the kubelet with --cloud-provider=external: the Node is created with
// the taint node.cloudprovider.kubernetes.io/uninitialized, so that no pod comes before
// the controller has set the providerID, the addresses and the zone and has removed
// the taint. The addresses belong to that controller: no other setter may set them.
// nodeIPs, if any, are the addresses that the program has been given, at most one for
// each IP family; the controller refuses to initialize a node without them.
func ExternalCloud(nodeIPs ...string) Setter {
	provided := strings.Join(nodeIPs, ",")
	return func(_ context.Context, node *corev1.Node) error {
		if len(node.Status.Addresses) > 0 {
			return errors.New("a setter before ExternalCloud has set addresses, which belong to the cloud controller manager")
		}
		taint := corev1.Taint{Key: taintUninitialized, Value: "true", Effect: corev1.TaintEffectNoSchedule}
		if !slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.MatchTaint(&taint) }) {
			node.Spec.Taints = append(node.Spec.Taints, taint)
		}
		if provided != "" {
			node.Annotations = with(node.Annotations, annotationProvidedIP, provided)
		}
		return nil
	}
}
