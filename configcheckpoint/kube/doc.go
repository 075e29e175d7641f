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
//	reporter, err := kube.NewReporter(client.CoreV1(), nodeName, "AgentConfigOK")
//	...
//	hooks := configcheckpoint.Hooks{StatusChanged: reporter.StatusChanged}
//	controller, err := configcheckpoint.New(configcheckpoint.Config[Settings]{
//		Source: source,
//		Hooks:  kube.WithEvents(hooks, recorder, node),
//		...
//	})
//	...
//	err = kubewright.Run(ctx, reporter, controller, work)
//
// The Reporter is for an agent next to a kubelet. A program that maintains the Node itself,
// with package nodestatus, uses a setter instead:
//
//	setters = append(setters, kube.NodeCondition(controller.Status, "AgentConfigOK"))
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
// yields an error and the configuration stays. A Reporter retries until the condition is
// written, and writes it again if the Node was created again.
//
// docs/operations.md has the events and the permissions.
package kube
