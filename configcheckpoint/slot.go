// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package configcheckpoint

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
)

// slotSize is the length of a slot file in bytes. A slot is written whole, so
// that overwriting it never allocates space.
const slotSize = 8192

// slotMagic begins every slot. The frame never changes, so that old code can
// tell a newer record from a damaged one; what changes is the schema inside.
const slotMagic = "cc1"

// errBlankSlot is the error of a slot that holds nothing but zeros or nothing
// at all, which is what a crash leaves of a file whose data was never flushed.
var errBlankSlot = errors.New("blank")

// encodeSlot frames a record: a header with its length and SHA-256, the JSON,
// and spaces up to slotSize, so that an operator can read it with cat.
func encodeSlot(r record) ([]byte, error) {
	var body bytes.Buffer
	enc := json.NewEncoder(&body)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(r); err != nil {
		return nil, fmt.Errorf("encode the record: %w", err)
	}
	text := bytes.TrimSuffix(body.Bytes(), []byte("\n"))
	sum := sha256.Sum256(text)
	slot := make([]byte, 0, slotSize)
	slot = fmt.Appendf(slot, "%s %d %x\n%s\n", slotMagic, len(text), sum, text)
	if len(slot) > slotSize {
		return nil, fmt.Errorf("the record takes %d bytes, more than a slot of %d", len(slot), slotSize)
	}
	return append(slot, bytes.Repeat([]byte{' '}, slotSize-len(slot))...), nil
}

// decodeSlot is the inverse of encodeSlot. It returns errBlankSlot for an
// empty slot, and another error where the record is not whole.
func decodeSlot(slot []byte) (record, error) {
	if len(bytes.Trim(slot, "\x00")) == 0 {
		return record{}, errBlankSlot
	}
	if len(slot) != slotSize {
		return record{}, fmt.Errorf("%d bytes long, not %d", len(slot), slotSize)
	}
	header, rest, ok := bytes.Cut(slot, []byte("\n"))
	fields := bytes.Split(header, []byte(" "))
	if !ok || len(fields) != 3 || string(fields[0]) != slotMagic {
		return record{}, errors.New("no header of this format")
	}
	length, err := strconv.Atoi(string(fields[1]))
	if err != nil || length < 0 || length >= len(rest) {
		return record{}, errors.New("the header's length is wrong")
	}
	// What follows is padding, and harmless whatever it is.
	text := rest[:length]
	sum := sha256.Sum256(text)
	if hex.EncodeToString(sum[:]) != string(fields[2]) {
		return record{}, errors.New("the checksum does not match")
	}
	var r record
	err = json.Unmarshal(text, &r)
	if err != nil || r.MinReader > recordSchema {
		// Of a record that it may not read this code must still learn that.
		if newer, ok := decodeNewer(text); ok {
			return newer, nil
		}
		return record{}, fmt.Errorf("decode the record: %w", err)
	}
	if err := r.check(); err != nil {
		return record{}, fmt.Errorf("the record is not valid: %w", err)
	}
	return r, nil
}

// decodeNewer returns the record in text where it may only be read by code
// newer than this. Whatever of it this code does not understand is left zero:
// a record of the future must never be taken for a damaged one, which would be
// replaced.
func decodeNewer(text []byte) (record, bool) {
	var version struct {
		Schema    int    `json:"schema"`
		MinReader int    `json:"minReader"`
		Gen       uint64 `json:"gen"`
	}
	if err := json.Unmarshal(text, &version); err != nil || version.MinReader <= recordSchema {
		return record{}, false
	}
	r := record{Schema: version.Schema, MinReader: version.MinReader, Gen: version.Gen}
	var refs struct {
		LKG *Ref `json:"lastKnownGood"`
	}
	if err := json.Unmarshal(text, &refs); err == nil && refs.LKG != nil && !refs.LKG.Digest.IsZero() {
		r.LKG = refs.LKG
	}
	return r, true
}
