module bst_operations #(
    parameter DATA_WIDTH = 16,
    parameter ARRAY_SIZE = 5
) (
    input  logic                                         clk,
    input  logic                                         reset,
    input  logic                                         start,
    input  logic [DATA_WIDTH-1:0]                        operation_key,
    input  logic [ARRAY_SIZE*DATA_WIDTH-1:0]             data_in,
    input  logic                                         operation,
    input  logic                                         sort_after_operation,
    output logic [$clog2(ARRAY_SIZE):0]                  key_position,
    output logic                                         complete_operation,
    output logic                                         operation_invalid,
    output logic [ARRAY_SIZE*DATA_WIDTH-1:0]             out_sorted_data,
    output logic [ARRAY_SIZE*DATA_WIDTH-1:0]             out_keys,
    output logic [ARRAY_SIZE*($clog2(ARRAY_SIZE)+1)-1:0] out_left_child,
    output logic [ARRAY_SIZE*($clog2(ARRAY_SIZE)+1)-1:0] out_right_child
);
    localparam PTR = $clog2(ARRAY_SIZE) + 1;

    logic [DATA_WIDTH-1:0] key;
    logic                  deleting, sorting;
    logic                  busy, succeeded, failed;
    logic                  start_search, start_delete, start_sort;

    wire [ARRAY_SIZE*DATA_WIDTH-1:0] built_keys, modified_keys, sorted;
    wire [ARRAY_SIZE*PTR-1:0]        built_left, built_right, modified_left, modified_right;
    wire [PTR-1:0]                   root, found_position;
    wire                             built, build_invalid, complete_found, search_invalid;
    wire                             complete_deletion, delete_invalid, sort_done, sort_invalid;

    wire begins = start && !busy;

    bst_tree_construct #(.DATA_WIDTH(DATA_WIDTH), .ARRAY_SIZE(ARRAY_SIZE)) construct_inst (
        .clk(clk),
        .reset(reset),
        .start(begins),
        .data_in(data_in),
        .keys(built_keys),
        .left_child(built_left),
        .right_child(built_right),
        .root(root),
        .done(built),
        .invalid(build_invalid)
    );

    search_binary_search_tree #(.DATA_WIDTH(DATA_WIDTH), .ARRAY_SIZE(ARRAY_SIZE)) search_inst (
        .clk(clk),
        .reset(reset),
        .start(start_search),
        .search_key(key),
        .root(root),
        .keys(built_keys),
        .left_child(built_left),
        .right_child(built_right),
        .key_position(found_position),
        .complete_found(complete_found),
        .search_invalid(search_invalid)
    );

    delete_node_binary_search_tree #(.DATA_WIDTH(DATA_WIDTH), .ARRAY_SIZE(ARRAY_SIZE)) delete_inst (
        .clk(clk),
        .reset(reset),
        .start(start_delete),
        .delete_key(key),
        .root(root),
        .keys(built_keys),
        .left_child(built_left),
        .right_child(built_right),
        .modified_keys(modified_keys),
        .modified_left_child(modified_left),
        .modified_right_child(modified_right),
        .complete_deletion(complete_deletion),
        .delete_invalid(delete_invalid)
    );

    // What is sorted is the tree that goes out: the deletion shows its own for one cycle only.
    binary_search_tree_sort #(.DATA_WIDTH(DATA_WIDTH), .ARRAY_SIZE(ARRAY_SIZE)) sort_inst (
        .clk(clk),
        .reset(reset),
        .start(start_sort),
        .keys(out_keys),
        .left_child(out_left_child),
        .right_child(out_right_child),
        .root(root),
        .sorted_out(sorted),
        .done(sort_done),
        .invalid(sort_invalid)
    );

    // The flags last for one cycle, the results until the next start.
    always_ff @(posedge clk or posedge reset)
        if (reset) begin
            {busy, succeeded, failed, complete_operation, operation_invalid} <= '0;
            {start_search, start_delete, start_sort, deleting, sorting, key} <= '0;
            {key_position, out_sorted_data, out_keys, out_left_child, out_right_child} <= '1;
        end else begin
            {succeeded, failed, complete_operation, operation_invalid} <= '0;
            {start_search, start_delete, start_sort} <= '0;

            if (begins) begin
                busy <= 1'b1;
                key <= operation_key;
                deleting <= operation;
                sorting <= sort_after_operation;
                {key_position, out_sorted_data, out_keys, out_left_child, out_right_child} <= '1;
            end

            if (built) begin
                start_search <= !deleting;
                start_delete <= deleting;
            end

            if (complete_found || complete_deletion) begin
                if (complete_found) key_position <= found_position;
                out_keys <= deleting ? modified_keys : built_keys;
                out_left_child <= deleting ? modified_left : built_left;
                out_right_child <= deleting ? modified_right : built_right;
                start_sort <= sorting;
                succeeded <= !sorting;
            end
            failed <= search_invalid || delete_invalid;

            if (sort_done) out_sorted_data <= sorted;

            if (succeeded || sort_done) begin
                complete_operation <= 1'b1;
                busy <= 1'b0;
            end
            if (build_invalid || failed || sort_invalid) begin
                operation_invalid <= 1'b1;
                busy <= 1'b0;
            end
        end
endmodule
