"""The stores: the contract (`base`), the choice by URI (`registry`) and one package a driver."""
