// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

// Package crdschema gives an apitest.Server the schemas of CustomResourceDefinitions, so
// that it prunes, defaults and validates custom resources as kube-apiserver does.
//
// # Usage
//
//	s := apitest.New(apitest.Options{Schemas: crdschema.Compile})
//
// Every CustomResourceDefinition that is then created, by a client or with Server.Put, has
// the schemas of its versions. Kinds of Options.Kinds and Server.Register have none.
//
// # Behavior
//
// The code is that of k8s.io/apiextensions-apiserver, the module that kube-apiserver uses.
// The package is a module of its own, so that package apitest does not need that module.
//
// A definition with a schema that is not structural, and any other invalid definition, is
// refused with 422. On create, update and patch, unknown fields are removed with a
// warning, or refused with fieldValidation=Strict. Then defaults are set, and the object is
// validated: types, required fields, patterns, limits, formats, list types, and the CEL
// rules of x-kubernetes-validations. An update may keep invalid values that it does not
// change (ratcheting).
//
// These differ from kube-apiserver:
//
//   - An object is pruned and defaulted when it is written. If the schema changes,
//     kube-apiserver prunes and defaults stored objects when they are read, but apitest only
//     with their next write.
//   - An update of a definition is validated as if the definition were created.
//   - A server-side apply with a field of a wrong type is answered with 422, not 500.
//     Each list is replaced as a whole, even with x-kubernetes-list-type map or set.
//   - There is no warning for a CEL rule that an unchanged value violates.
//   - Versions are not converted, except for their apiVersion.
//
// # Concurrency
//
// Compile may be called concurrently, and so may the methods of its schemas.
package crdschema
