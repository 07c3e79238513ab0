module universal_shift_register #(parameter N = 8) (
    input  logic         clk,
    input  logic         rst,
    input  logic         en,
    input  logic [2:0]   op_sel,
    input  logic         shift_dir,
    input  logic [1:0]   bitwise_op,
    input  logic         serial_in,
    input  logic [N-1:0] parallel_in,
    output logic [N-1:0] q,
    output logic         serial_out,
    output logic         overflow,
    output logic         parity_out,
    output logic         zero_flag,
    output logic         msb_out,
    output logic         lsb_out
);
    localparam logic [2:0] HOLD = 0, SHIFT = 1, ROTATE = 2, LOAD = 3, ARITHMETIC = 4, BITWISE = 5, REVERSE = 6, INVERT = 7;

    assign msb_out = q[N-1];
    assign lsb_out = q[0];
    assign parity_out = ^q;
    assign zero_flag = q == 0;
    assign serial_out = shift_dir ? q[N-1] : q[0];

    function automatic logic [N-1:0] moved(input logic left, input logic fill);
        moved = left ? {q[N-2:0], fill} : {fill, q[N-1:1]};
    endfunction

    function automatic logic [N-1:0] combined(input logic [1:0] op, input logic [N-1:0] other);
        case (op)
            2'b00:   combined = q & other;
            2'b01:   combined = q | other;
            2'b10:   combined = q ^ other;
            default: combined = q ~^ other;
        endcase
    endfunction

    always_ff @(posedge clk or posedge rst)
        if (rst) begin
            q <= 0;
            overflow <= 0;
        end else if (en) begin
            // The bit that leaves, as long as the last operation let one go.
            overflow <= (op_sel == SHIFT || op_sel == ROTATE || op_sel == ARITHMETIC) && (shift_dir ? q[N-1] : q[0]);
            case (op_sel)
                SHIFT:      q <= moved(shift_dir, serial_in);
                ROTATE:     q <= moved(shift_dir, shift_dir ? q[N-1] : q[0]);
                LOAD:       q <= parallel_in;
                ARITHMETIC: q <= moved(shift_dir, !shift_dir && q[N-1]);
                BITWISE:    q <= combined(bitwise_op, parallel_in);
                REVERSE:    for (int i = 0; i < N; i++) q[i] <= q[N-1-i];
                INVERT:     q <= ~q;
                default:    q <= q;
            endcase
        end
endmodule
