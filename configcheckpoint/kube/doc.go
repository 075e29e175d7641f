// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package kube connects configcheckpoint with Kubernetes: it takes the configuration from a
// ConfigMap, shows the status as a condition of the Node, and records events.
//
// Package configcheckpoint itself links nothing of Kubernetes except its log. So an agent
// that does not import this package stays small.
//
// # Usage
//
//	source, err := kube.ConfigMap(client.CoreV1(), "kube-system", "agent", "config.yaml")
//	...
//	controller, err := configcheckpoint.New(configcheckpoint.Config[Settings]{
//		Source: source,
//		Hooks:  kube.WithEvents(hooks, recorder, node),
//		...
//	})
//	...
//	setters = append(setters, kube.NodeCondition(controller.Status, "AgentConfigOK")) // of package nodestatus
//
// The last line is for a program that maintains the Node itself. An agent next to a kubelet
// patches the result of Condition into the Node's status.
//
// # Behavior
//
// The source lists and watches one ConfigMap. A change of another key, of a label or of the
// object's UID changes nothing, because a configuration is identified by its bytes.
//
// # Concurrency
//
// All functions may be called by any number of goroutines.
//
// # Failure modes
//
// If the ConfigMap or its key is missing, or the API server does not answer, the source
// yields an error and the configuration stays.
//
// docs/operations.md has the events and the permissions.
package kube
