// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package apierr

import "fmt"

// Permission adds to an error that says that a permission is missing the name of the file
// of examples/rbac that grants it. Any other error is returned as it is.
func Permission(err error, file string) error {
	if Classify(err) != Forbidden {
		return err
	}
	return fmt.Errorf("%w (examples/rbac/%s of Kubewright grants a ServiceAccount what is needed)", err, file)
}
