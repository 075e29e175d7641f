// Copyright The Kubewright Authors
// SPDX-License-Identifier: Apache-2.0

package slotstore

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
)

const (
	// slotSize is the length of a slot file in bytes. A slot is always written
	// completely, so overwriting it never allocates space.
	slotSize = 8192
	// noteSize is the length of the note file in bytes.
	noteSize = 1024
	// frameMagic begins every frame. The frame never changes, so that old code
	// distinguishes a newer record from a damaged one.
	frameMagic = "cc1"
)

// errBlank is the error of a frame that is empty or holds only zeros. A crash
// leaves that of a file whose data was never flushed.
var errBlank = errors.New("blank")

// encodeFrame returns size bytes: a header with the length and SHA-256 of text,
// text, and spaces, so that an administrator can read the file with cat.
func encodeFrame(text []byte, size int) ([]byte, error) {
	sum := sha256.Sum256(text)
	frame := make([]byte, 0, size)
	frame = fmt.Appendf(frame, "%s %d %x\n%s\n", frameMagic, len(text), sum, text)
	if len(frame) > size {
		return nil, fmt.Errorf("%d bytes with the header do not fit in %d", len(frame), size)
	}
	return append(frame, bytes.Repeat([]byte{' '}, size-len(frame))...), nil
}

// decodeFrame is the inverse of encodeFrame. It returns errBlank for an empty
// frame, and another error if the text is not complete.
func decodeFrame(frame []byte, size int) ([]byte, error) {
	if len(bytes.Trim(frame, "\x00")) == 0 {
		return nil, errBlank
	}
	if len(frame) != size {
		return nil, fmt.Errorf("%d bytes long, not %d", len(frame), size)
	}
	header, rest, ok := bytes.Cut(frame, []byte("\n"))
	fields := bytes.Split(header, []byte(" "))
	if !ok || len(fields) != 3 || string(fields[0]) != frameMagic {
		return nil, errors.New("no header of this format")
	}
	length, err := strconv.Atoi(string(fields[1]))
	if err != nil || length < 0 || length >= len(rest) {
		return nil, errors.New("the header's length is wrong")
	}
	// The rest is padding. Damage to it is harmless.
	text := rest[:length]
	sum := sha256.Sum256(text)
	if hex.EncodeToString(sum[:]) != string(fields[2]) {
		return nil, errors.New("the checksum does not match")
	}
	return text, nil
}

// EncodeSlot returns the content of a slot file that holds record. Tests use it
// to place a record on a disk.
func EncodeSlot(record []byte) ([]byte, error) { return encodeFrame(record, slotSize) }

// DecodeSlot returns the record in the content of a slot file.
func DecodeSlot(data []byte) ([]byte, error) { return decodeFrame(data, slotSize) }
