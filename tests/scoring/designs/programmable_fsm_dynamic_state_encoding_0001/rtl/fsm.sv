module fsm (
    input  logic         clk,
    input  logic         reset,
    input  logic [3:0]   input_signal,
    input  logic [63:0]  config_state_map_flat,
    input  logic [127:0] config_transition_map_flat,
    output logic [7:0]   encoded_state,
    output logic [7:0]   dynamic_encoded_state,
    output logic         error_flag,
    output logic [7:0]   operation_result
);
    logic [7:0] state, target, entry;

    // The map has room for the sixteen inputs of state 0; what lies beyond it reads as 0, so every other state returns there.
    always_comb begin
        target = 8'd0;
        if (state == 0) target = config_transition_map_flat[8 * input_signal +: 8];
    end

    assign error_flag = !reset && target > 7;

    always_ff @(posedge clk or posedge reset)
        if (reset) state <= 8'd0;
        else state <= target > 7 ? 8'd0 : target;

    // Only the outside sees the codes: a map that changes at run time leaves the machine's course alone.
    assign entry = config_state_map_flat[8 * state[2:0] +: 8];
    assign encoded_state = entry;
    assign dynamic_encoded_state = entry ^ {4'b0, input_signal};

    always_comb
        case (state)
            8'd0:    operation_result = entry + input_signal;
            8'd1:    operation_result = entry - input_signal;
            8'd2:    operation_result = entry & input_signal;
            8'd3:    operation_result = entry | input_signal;
            default: operation_result = 8'hFF;
        endcase
endmodule
