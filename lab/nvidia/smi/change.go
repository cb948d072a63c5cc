// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"syscall"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

const inUse = "%s is currently being used by one or more other processes (e.g. CUDA application or a monitoring " +
	"application such as another instance of nvidia-smi). Please first kill all processes using the device and retry the " +
	"command or reboot the system to make MIG mode effective.\n"

func setMigMode(o *options) error {
	verb := map[string]string{"0": "disable", "DISABLED": "disable", "1": "enable", "ENABLED": "enable"}[o.migMode]
	if verb == "" {
		return fail(exitBadArgument, "Invalid MIG mode: %s. Please run 'nvidia-smi -h' for help.\n", o.migMode)
	}
	mode := nvml.DEVICE_MIG_DISABLE
	if verb == "enable" {
		mode = nvml.DEVICE_MIG_ENABLE
	}
	chosen, err := gpus(o.id)
	if err != nil {
		return err
	}
	warned := nvml.SUCCESS
	for _, g := range chosen {
		status, rc := g.SetMigMode(mode)
		switch {
		case rc == nvml.ERROR_NOT_SUPPORTED:
			fmt.Printf("Unable to %s MIG Mode for GPU %s: %v\nTreating as warning and moving on.\n", verb, g.bus, nvml.ErrorString(rc))
			warned = rc
		case rc != nvml.SUCCESS:
			return fail(int(rc), "Unable to %s MIG Mode for GPU %s: %v\nTerminating early due to previous errors.", verb, g.bus,
				nvml.ErrorString(rc))
		case status != nvml.SUCCESS:
			fmt.Printf("Warning: MIG mode is in pending %s state for GPU %s:%v\n", verb, g.bus, nvml.ErrorString(status))
			fmt.Printf(inUse, g.bus)
			warned = status
		default:
			if on, rc := g.GetPersistenceMode(); rc == nvml.SUCCESS && on != nvml.FEATURE_ENABLED {
				fmt.Printf("Warning: persistence mode is disabled on device %s. See the Known Issues section of the nvidia-smi(1) "+
					"man page for more information. Run with [--help | -h] switch to get more information on how to enable "+
					"persistence mode.\n", g.bus)
			}
			fmt.Printf("%sd MIG Mode for GPU %s\n", map[string]string{"enable": "Enable", "disable": "Disable"}[verb], g.bus)
		}
	}
	fmt.Println("All done.")
	if o.errorOnWarning && warned != nvml.SUCCESS {
		return fail(int(warned), "")
	}
	return nil
}

func setPersistence(o *options) error {
	words := map[string]string{"0": "Disabled", "DISABLED": "Disabled", "1": "Enabled", "ENABLED": "Enabled"}
	word := words[o.persistence]
	if word == "" {
		return fail(exitBadArgument, "Invalid persistence mode: %s. Please run 'nvidia-smi -h' for help.\n", o.persistence)
	}
	mode := nvml.EnableState(nvml.FEATURE_DISABLED)
	if word == "Enabled" {
		mode = nvml.FEATURE_ENABLED
	}
	chosen, err := gpus(o.id)
	if err != nil {
		return err
	}
	for _, g := range chosen {
		if current, rc := g.GetPersistenceMode(); rc == nvml.SUCCESS && current == mode {
			fmt.Printf("Persistence mode is already %s for GPU %s.\n", word, g.bus)
			continue
		}
		if rc := g.SetPersistenceMode(mode); rc != nvml.SUCCESS {
			return fail(int(rc), "Unable to set persistence mode for GPU %s: %v\nTerminating early due to previous errors.", g.bus,
				nvml.ErrorString(rc))
		}
		fmt.Printf("%s persistence mode for GPU %s.\n", word, g.bus)
	}
	fmt.Println("All done.")
	return nil
}

// NVML has no documented call for a reset. This is NVSIM_RESET of kernel/nvidia-sim.h.
type simRequest struct {
	minor, gi, ci, profile, start, size, value uint32
}

const simReset = 1<<30 | uintptr(unsafe.Sizeof(simRequest{}))<<16 | 'N'<<8 | 0x88

func resetGPU(g gpu) error {
	minor, rc := g.GetMinorNumber()
	if rc != nvml.SUCCESS {
		return errors.New(nvml.ErrorString(rc))
	}
	fd, err := syscall.Open("/dev/nvidiactl", syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	request := simRequest{minor: uint32(minor)}
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), simReset, uintptr(unsafe.Pointer(&request))); errno != 0 {
		return errno
	}
	return nil
}

func reset(o *options) error {
	chosen, err := gpus(o.id)
	if err != nil {
		return err
	}
	var busy []gpu
	for _, g := range chosen {
		switch err := resetGPU(g); {
		case err == nil:
			fmt.Printf("GPU %s was successfully reset.\n", g.bus)
		case errors.Is(err, syscall.EBUSY):
			busy = append(busy, g)
		case errors.Is(err, syscall.EPERM):
			return fail(int(nvml.ERROR_NO_PERMISSION), "Unable to reset GPU %s: Insufficient Permissions", g.bus)
		default:
			return fail(exitOther, "Unable to reset GPU %s: %v", g.bus, err)
		}
	}
	if len(busy) == 0 {
		fmt.Println("All done.")
		return nil
	}
	fmt.Println("The following GPUs could not be reset:")
	for _, g := range busy {
		fmt.Printf("  GPU %s: In use by another client\n", g.bus)
	}
	noun := "devices are"
	if len(busy) == 1 {
		noun = "device is"
	}
	return fail(exitOther, "\n%d %s currently being used by one or more other processes (e.g., Fabric Manager, CUDA application, "+
		"graphics application such as an X server, or a monitoring application such as another instance of nvidia-smi). Please "+
		"first kill all processes using this device and all compute applications running in the system.\n", len(busy), noun)
}
