// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"fmt"

	"github.com/kubewright/kubewright/configcheckpoint"
	"github.com/kubewright/kubewright/configcheckpoint/kube"
)

// What runs and why is a condition of the Node, for whatever writes the Node's
// status.
func ExampleCondition() {
	status := configcheckpoint.Status{
		Phase:   configcheckpoint.PhaseRolledBack,
		Reason:  configcheckpoint.ReasonCrashLoop,
		Message: "ConfigMap kube-system/agent[config.yaml] was rejected: 3 starts without success",
	}
	condition := kube.Condition(status, "AgentConfigOK")
	fmt.Printf("%s=%s %s\n", condition.Type, condition.Status, condition.Reason)
	fmt.Println(condition.Message)
	// Output:
	// AgentConfigOK=False CrashLoop
	// ConfigMap kube-system/agent[config.yaml] was rejected: 3 starts without success
}
