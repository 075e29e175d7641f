// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint_test

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubewright/kubewright/configcheckpoint"
)

// What runs and why is a condition of the Node, for whatever writes the Node's
// status.
func ExampleStatus_Condition() {
	status := configcheckpoint.Status{
		Phase:   configcheckpoint.PhaseRolledBack,
		OK:      corev1.ConditionFalse,
		Reason:  configcheckpoint.ReasonCrashLoop,
		Message: "ConfigMap kube-system/agent[config.yaml] was rejected: 3 starts without success",
	}
	condition := status.Condition("AgentConfigOK")
	fmt.Printf("%s=%s %s\n", condition.Type, condition.Status, condition.Reason)
	fmt.Println(condition.Message)
	// Output:
	// AgentConfigOK=False CrashLoop
	// ConfigMap kube-system/agent[config.yaml] was rejected: 3 starts without success
}
