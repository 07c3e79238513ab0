module hdbn_top #(
    parameter integer encoder_type = 3,
    parameter logic pulse_active_state = 1'b1
) (
    input  logic reset_in,
    input  logic clk_in,
    input  logic clk_enable_in,
    input  logic data_in,
    input  logic output_gate_in,
    output logic p_out,
    output logic n_out,
    input  logic p_in,
    input  logic n_in,
    output logic data_out,
    output logic code_error_out
);
    hdbn_encoder #(.encoder_type(encoder_type), .pulse_active_state(pulse_active_state)) u_encoder (
        .reset_in, .clk_in, .clk_enable_in, .data_in, .output_gate_in, .p_out, .n_out
    );

    hdbn_decoder #(.encoder_type(encoder_type), .pulse_active_state(pulse_active_state)) u_decoder (
        .reset_in, .clk_in, .clk_enable_in, .p_in, .n_in, .data_out, .code_error_out
    );
endmodule
